"""The way back: half models, of this tool and others, in float32."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import amp_rewrite
from amp_rewrite.demo import network
from amp_rewrite.policy.options import Level, Options
from tests import real_models, text
from tests.commands import refusal
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


def test_what_goes_through_unchanged_stays():
    """A half input that is an output, and stored values that are outputs, keep type and name."""
    source = model(
        "g (float16[2] x) => (float16[2] x, float16[2] w, float16[2] y) <float16[2] w> { y = Neg (x) }"
    )
    found = amp_rewrite.restore(source)
    onnx.checker.check_model(found.model, full_check=True)
    assert types(found.model) == types(source)
    sample = {"x": np.array([1, 2], np.float16)}
    got = sessions.run_session(sessions.open_session(found.model), sample)
    assert got["y"].tolist() == [-1, -2]
    assert got["x"].tolist() == [1, 2]


def test_a_custom_operator_keeps_its_types():
    """What has no schema reads and gives what it did."""
    source = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
        g (float16[2] x) => (float16[2] y) <float16[2] w = {1, 2}, float16[2] b> {
        a = Add (x, w) b = my.domain.Odd (a) y = Mul (b, w) }"""
    )
    found = amp_rewrite.restore(source).model
    inner = [node for node in found.graph.node if node.op_type == "Cast"][1:-1]
    assert [node.op_type for node in found.graph.node] == "Cast Add Cast Odd Cast Mul Cast".split()
    assert [node.attribute[0].i for node in inner] == [TensorProto.FLOAT16, TensorProto.FLOAT]


def test_sequences_at_the_borders():
    """Sequences of half get a loop of Casts, or become float32."""
    source = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (seq(float16[2]) s) => (float16[4] y, seq(float16[2]) t) {
        y = ConcatFromSequence <axis = 0> (s) t = SequenceConstruct (y) }"""
    )
    for io, dtype in (("keep", np.float16), ("float", np.float32)):
        found = amp_rewrite.restore(source, io=io)
        assert found.ok
        sample = {"s": [np.array([1, 2], dtype), np.array([3, 4], dtype)]}
        got = sessions.run_session(sessions.open_session(found.model), sample)
        assert got["y"].dtype == dtype
        assert got["t"][0].dtype == dtype


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("io", ["keep", "half"])
def test_a_rewrite_and_back_has_the_borders_and_nodes_of_the_original(kind, io):
    """No Cast is left, and what the result carried of the decisions is gone."""
    source = model("""g (float[4, 8] x) => (float[4, 8] y) <float[8, 8] w, float[8] s> {
        a = MatMul (x, w) b = Softmax (a) c = Add (b, s) d = Exp (c) y = MatMul (d, w) }""")
    half = amp_rewrite.rewrite(source, Options(half=kind, io=io)).model
    back = amp_rewrite.restore(half, io="float").model
    assert types(back) == types(source)
    assert [node.op_type for node in back.graph.node] == [node.op_type for node in source.graph.node]
    assert not back.metadata_props
    assert not half_parts(back)


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


def test_bad_input_is_refused(tmp_path):
    """And nothing is written."""
    path = tmp_path / "m.onnx"
    onnx.save(model(MIXED), path)
    assert "io" in refusal(amp_rewrite.restore, path, io="half")
    assert "output" in refusal(amp_rewrite.restore, model(MIXED), output="a.onnx")
    refusal(amp_rewrite.restore, path, output=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


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


def test_a_cast_like_in_a_function_comes_back():
    """As the Cast that it became, and proved."""
    source = model(
        """<ir_version: 9, opset_import: ["": 19, "my": 1]> g (float[4, 8] x) => (float[4, 8] y)
        <float[8, 8] w> { h = MatMul (x, w) y = my.twice (h) }
        <domain: "my", opset_import: ["": 19]> twice (a) => (o) {
        two = Constant <value_int = 2> () t = CastLike (two, a) o = Mul (a, t) }"""
    )
    back = amp_rewrite.restore(amp_rewrite.rewrite(source).model).model
    assert amp_rewrite.certify(source, back).proved


def test_wrong_declarations_of_another_tool_are_corrected():
    """A model in which a float32 value is declared half does not load, and does when it is restored."""
    given = model(
        "g (float[2, 2] x) => (float[2, 2] y) <float16[2, 2] w> { a = Mul (x, x) v = Cast <to = 1> (w) "
        "y = MatMul (a, v) }"
    )
    given.graph.value_info.append(onnx.helper.make_tensor_value_info("a", TensorProto.FLOAT16, [2, 2]))
    with pytest.raises(Exception, match=r"does not match expected type"):
        sessions.open_session(given)
    restored = amp_rewrite.restore(given).model
    sessions.open_session(restored)
    assert "FLOAT16" not in text.types(restored).values()


def test_an_output_keeps_its_type_where_the_value_before_it_declares_none():
    """As scikit-learn's converter writes: a Cast that does nothing, behind a value without a type."""
    given = model(
        "g (float[n, 2] x) => (float[n, 2] y) <float16[2, 2] w> "
        "{ v = Cast <to = 1> (w) a = MatMul (x, v) y = Cast <to = 1> (a) }"
    )
    given.graph.value_info.clear()
    restored = amp_rewrite.restore(given).model
    assert text.nodes(restored) == ["y = MatMul(x, w)"]
    assert restored.graph.output == given.graph.output
