"""The way back: half models, of this tool and others, in float32."""

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.demo import network
from amp_rewrite.policy.options import Level, Options
from tests import real_models, text
from tests.real_models import INDEX, MODELS
from tests.text import model

pytest.importorskip("onnxruntime")
from amp_rewrite.running import sessions

HALVES = ("float16", "bfloat16")
MIXED = """g (float[2, 8] x, float16[8] bias, bool c) => (float16[2, 8] y, float[2, 8] z) <float16[8, 8] w> {
    a = Cast <to = 10> (x)
    b = MatMul (a, w)
    d = Add (b, bias)
    e = If (c) <then_branch = t () => (float16[2, 8] p) { p = Relu (d) },
        else_branch = f () => (float16[2, 8] q) {
            k = Constant <value = float16[1] {31743}> () q = Min (d, k) }>
    y = Softmax (e)
    g = Cast <to = 1> (e)
    h = Cast <to = 10> (g)
    z = Cast <to = 1> (h)
}"""


def types(proto):
    """The element types of inputs and outputs."""
    ends = (*proto.graph.input, *proto.graph.output)
    return {end.name: end.type.tensor_type.elem_type for end in ends}


def half_parts(proto):
    """The half initializers, Constants and `to` of all graphs, but for Casts at the borders."""
    return [name for name, array in text.stored(proto).items() if array.dtype in HALVES]


@pytest.mark.parametrize("io", ["keep", "float"])
def test_a_mixed_model_computes_the_same_in_float32(io):
    """Bodies, Constants and Casts; inputs and outputs as asked, close to the half model."""
    source = model(MIXED, {"w": np.eye(8, dtype=np.float16)})
    found = amp_rewrite.restore(source, io=io)
    onnx.checker.check_model(found.model, full_check=True)
    assert not half_parts(found.model)
    keep = io == "keep"
    assert types(found.model)["bias"] == types(found.model)["y"] == (10 if keep else 1)
    assert [node.op_type for node in found.model.graph.node].count("Cast") == (2 if keep else 0)
    assert found.edited.widened == 2
    assert len(found.edited.at_limit) == 1
    assert found.edited.casts_removed == 4
    draw = np.random.default_rng(0)
    bias = draw.normal(size=8).astype(np.float16)
    sample = {"x": draw.normal(size=(2, 8)).astype(np.float16).astype(np.float32), "c": np.array(True)}
    session = sessions.open_session(found.model)
    got = sessions.run_session(session, {**sample, "bias": bias if keep else bias.astype(np.float32)})
    want = np.maximum(sample["x"] + bias.astype(np.float32), 0)
    np.testing.assert_allclose(got["z"], want, rtol=1e-6)
    assert types(source)["y"] == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [entry for entry in INDEX if entry["runs"]][::3], ids=lambda entry: entry["name"]
)
def test_real_models_there_and_back(entry, tmp_path):
    """Forced to half with half inputs and outputs, and back: valid, nothing half, near the original."""
    source, half = MODELS / entry["file"], tmp_path / "half.onnx"
    options = Options(level=Level.UNSAFE_FORCE_ALL, io="half", check=False)
    if not amp_rewrite.rewrite(source, options, output=half).report.changed:
        return
    back = amp_rewrite.restore(half, output=tmp_path / "back.onnx", io="float")
    proto = onnx.load(back.model)
    assert back.ok
    assert not half_parts(proto)
    assert types(proto) == types(onnx.load(source, load_external_data=False))
    verdict = amp_rewrite.verify(source, back.model, real_models.feeds(entry["name"]))
    assert verdict.error < 0.2 or not verdict.is_far, verdict


def test_there_and_back_is_proved(tmp_path):
    """A rewritten model that is restored is the original but for precision; another model is not."""
    source, half, back = (tmp_path / f"{name}.onnx" for name in ("demo", "half", "back"))
    onnx.save(network(), source)
    amp_rewrite.rewrite(source, output=half)
    amp_rewrite.restore(half, output=back)
    found = amp_rewrite.certify(source, back)
    assert found.proved, found
    assert "restored" in str(found.to_json())
    changed = onnx.load(back)
    weight = next(t for t in changed.graph.initializer if t.name == "loop_weight")
    array = onnx.numpy_helper.to_array(weight).copy()
    array.flat[3] = np.nextafter(array.flat[3], np.float32(9))
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    assert not amp_rewrite.certify(onnx.load(source), changed).proved
