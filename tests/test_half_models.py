"""Models that are half already: of the other half type, in full or in part, or invalid."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.demo import network
from amp_rewrite.errors import ModelError
from amp_rewrite.policy.operator_lists import Kind, load
from amp_rewrite.policy.options import Options
from amp_rewrite.rewriting.editing import LAZY_FROM
from tests import text
from tests.commands import failure, run

pytest.importorskip("onnxruntime")
from amp_rewrite.running import sessions
from amp_rewrite.running.inputs import feeds as feeds_for
from amp_rewrite.running.inputs.feeds import Data

CASES = Path(__file__).parents[2] / "shared" / "cases"
FLOAT, FLOAT16, BFLOAT16 = (int(getattr(onnx.TensorProto, name)) for name in ("FLOAT", "FLOAT16", "BFLOAT16"))
OTHER = {"float16": "bfloat16", "bfloat16": "float16"}


def case(name):
    """The path of a model that was made after a public report."""
    if not CASES.exists():
        pytest.skip("the shared cases are not here")
    return CASES / f"{name}.onnx"


def stored(proto):
    """The types of the values that the main graph stores."""
    return {
        tensor.data_type for tensor in proto.graph.initializer if tensor.data_type != onnx.TensorProto.INT64
    }


@pytest.mark.parametrize("half", OTHER)
@pytest.mark.parametrize("io", ["keep", "half"])
def test_a_model_of_the_other_half_type_is_converted(half, io):
    """In one step, with the proof, to what the float32 model becomes; inputs keep their type unless asked."""
    of_other = amp_rewrite.rewrite(network(), Options(half=OTHER[half], io="half")).model
    result = amp_rewrite.rewrite(of_other, Options(half=half, io=io))
    plain = amp_rewrite.rewrite(network(), Options(half=half))
    types = {"float16": FLOAT16, "bfloat16": BFLOAT16}
    assert result.report.nodes.half >= plain.report.nodes.half
    assert types[half] in stored(result.model)
    assert types[OTHER[half]] not in stored(result.model)
    kind = types[half if io == "half" else OTHER[half]]
    assert {port.type.tensor_type.elem_type for port in result.model.graph.input} == {kind}
    assert result.report.certificate.proved
    assert result.report.certificate.licences[Licence.CONVERTED]
    assert amp_rewrite.verify(of_other, result.model, io=io).ok


@pytest.mark.parametrize(("name", "products"), [("10_allbf16", 4), ("10_tirex", 25)])
def test_a_bfloat16_model_becomes_float16(name, products, tmp_path):
    """As a whole, or in the products that are bfloat16 within a float32 model; onnxruntime runs the result,
    which is compared with the original in float32, as it has no kernels for the original.
    """
    result = run(case(name), "-o", tmp_path / "m.onnx", "--io", "half")
    assert result.exit_code == 0, result.output
    assert "PASS" in result.output
    assert "the original runs with its half values restored to float32 only" in result.output
    made = onnx.load(tmp_path / "m.onnx")
    assert stored(made) == {FLOAT16}
    assert not any(node.op_type == "Cast" for node in made.graph.node)
    assert amp_rewrite.measure_coverage(made).nodes.half == products
    sessions.open_session(made)
    assert run(case(name), "--dry-run").exit_code == 0
    assert amp_rewrite.observe(onnx.load(case(name)), next(iter(sampled(name)))).samples == 1


def sampled(name):
    """A sample of the inputs of a case."""
    shape = {"10_allbf16": (4, 32), "10_tirex": (4, 5, 16)}[name]
    yield {"x": np.random.default_rng(0).standard_normal(shape, np.float32)}


def test_a_large_model_is_converted_from_its_file(tmp_path):
    """Weights of a file are converted block by block, twice, to the same values."""
    rows = LAZY_FROM // 64
    weights = np.random.default_rng(0).standard_normal((rows, 64), np.float32)
    io = f"(float[1, {rows}] x) => (float[1, 64] y)"
    written = f"g {io} <float[{rows}, 64] w> {{ y = MatMul (x, w) }}"
    of_bf16 = amp_rewrite.rewrite(text.model(written, {"w": weights}), Options(half="bfloat16")).model
    rounded = onnx.numpy_helper.to_array(of_bf16.graph.initializer[0]).astype(np.float16)
    onnx.save(of_bf16, tmp_path / "m.onnx", save_as_external_data=True)
    result = amp_rewrite.rewrite(tmp_path / "m.onnx", output=tmp_path / "n.onnx")
    assert result.report.certificate.proved
    (tensor,) = onnx.load(result.model).graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(tensor), rounded)


CONFLICTS = {
    "declared": """g (float16[4, 8] x) => (float16[4, 8] y) <float16[8, 8] w, float16[4, 8] b> {
        a = MatMul (x, w)  b = Cast <to = 1> (a)  c = Softmax (b)  y = Cast <to = 10> (c) }""",
    "a constant": """g (float[4, 8] x) => (float[4, 8] y) <float[8, 8] w, float16[8] c> {
        a = MatMul (x, w)  y = Add (a, c) }""",
    "an output": "g (float16[4, 8] x) => (float[4, 8] y) <float16[8, 8] w> { y = MatMul (x, w) }",
    "a branch": """g (float[4, 8] x, bool c) => (float[4, 8] y) <float16[8] h> {
        y = If (c) <then_branch = t () => (float[4, 8] p) { p = Relu (x) },
            else_branch = f () => (float16[4, 8] q) { z = Cast <to = 10> (x)  q = Add (z, h) }> }""",
}


def broken(name):
    """A model that has two float types where there should be one."""
    if name.endswith("_broken"):
        return onnx.load(case(name))
    return text.unchecked(CONFLICTS[name])


@pytest.mark.parametrize("name", ["06_broken", "72_mixed_broken", *CONFLICTS])
def test_types_that_contradict_each_other_are_refused(name, tmp_path):
    """With exit code 2, before anything is written, and the command that mends the model: what it restores
    loads and runs.
    """
    onnx.save(broken(name), tmp_path / "m.onnx")
    with pytest.raises(ModelError):
        sessions.open_session(tmp_path / "m.onnx")
    line = failure(tmp_path / "m.onnx")
    assert "is not a valid model: " in line
    assert line.endswith(f"mend it first: amp-rewrite restore {tmp_path / 'm.onnx'}")
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert run("restore", tmp_path / "m.onnx", "-o", tmp_path / "f.onnx").exit_code == 0
    restored = tmp_path / "f.onnx"
    sample = feeds_of(restored)[0]
    sessions.run_session(sessions.open_session(restored), sample)
    assert run(restored, "-o", tmp_path / "h.onnx").exit_code == 0


def feeds_of(path):
    """A synthetic sample of the inputs of a model."""
    return [*feeds_for.feeds(path, Data())]


@pytest.mark.parametrize(
    ("name", "operator", "why"),
    [
        (
            "04_custom_plugins",
            "autoware:SparseVoxelPlugin",
            "if its kernels take float16, --op-type autoware:",
        ),
        ("71_qdq", "QuantizeLinear", "the schema has float16 from 19 on, which --opset 19 sets"),
        ("71_qdq", "DequantizeLinear", "the schema has float16 from 19 on, which --opset 19 sets"),
    ],
)
def test_an_allowed_operator_that_stays_float32_says_why(name, operator, why):
    """And what would change that, where a flag matches nodes of which none becomes half."""
    options = Options(lists=load("default").override(Kind.ALLOW, [operator]), keep_opset=True)
    (matched,) = amp_rewrite.analyze(case(name), options).report().matched
    assert why in matched.why
    told = run(case(name), "--dry-run", "--opset=keep", "--allow", operator).stdout
    assert f"none of which is half: {matched.why}" in told
    assert "it can only be float32 here" not in run("explain", case("71_qdq")).stdout
