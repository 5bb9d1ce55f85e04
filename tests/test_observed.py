"""What float32 runs saw in a model, and what they keep in float32."""

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.errors import FeedError
from amp_rewrite.policy.evidence import Authority, in_words
from amp_rewrite.policy.options import Options
from amp_rewrite.running.inputs.feeds import InputSource
from amp_rewrite.running.sessions import Device
from tests import commands
from tests.text import model, values_in_half

pytest.importorskip("onnxruntime")
GROWS = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {300, 0, 0, 300}, float[2,2] v = {1, 0, 0, 1}> {
    [small] a = MatMul (x, w) [large] b = MatMul (a, w) [moved] c = Transpose (b) [last] d = MatMul (c, v)
    [bounded] y = Tanh (d) }"""
"""The second product reaches 90000 for an x of 1, which float16 turns into infinity and then into NaN."""
MASKED = """g (float[2,2] x, bool[2,2] k) => (float[2,2] y) <float[2,2] w, float fill = {-3.4e38}> {
    [scores] s = MatMul (x, w) [mask] a = Where (k, s, fill) [soft] p = Softmax (a)
    [last] y = MatMul (p, w) }"""
SAMPLE = {"x": np.eye(2, dtype=np.float32)}


def held(seen, half="float16", text=GROWS):
    """The reasons that observation keeps nodes in float32, by the name of the node."""
    made = amp_rewrite.analyze(model(text), Options(half=half, rescale=False), observed=seen)
    entries = made.painting.entries
    return {
        unit.node.name: in_words(entries[unit.index].evidence)
        for unit in made.graph.units
        if entries[unit.index].authority is Authority.OBSERVATION
    }


def test_extremes_of_all_floats_over_all_samples():
    """Inputs and intermediate values, with their lowest and highest element; no sample is an error."""
    tiny = {"x": SAMPLE["x"] / 1000}
    seen = amp_rewrite.observe(model(GROWS), [SAMPLE, tiny], device=Device.CPU)
    assert seen.keys() == {"x", "a", "b", "c", "d", "y"}
    assert seen["x"] == Extremes(0, 1, samples=2, counted=8)
    assert seen["b"] == Extremes(0, 90000, samples=2, counted=8, beyond=2)
    with pytest.raises(FeedError, match="no sample"):
        amp_rewrite.observe(model(GROWS), [], device=Device.CPU)


def test_sparse_values_are_passed_over():
    """A sparse Constant has no extremes, and does not prevent observation."""
    proto = model("g (float[4,4] x) => (float[4,4] y) { y = Relu (x) }")
    values = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [1], [1])
    indices = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [3])
    sparse = onnx.helper.make_sparse_tensor(values, indices, [4, 4])
    proto.graph.node.append(onnx.helper.make_node("Constant", [], ["s"], sparse_value=sparse))
    proto.graph.node.append(onnx.helper.make_node("MatMul", ["y", "s"], ["z"]))
    seen = amp_rewrite.observe(proto, [{"x": np.ones((4, 4), np.float32)}], device=Device.CPU)
    assert seen.keys() == {"x", "y", "z"}


@pytest.mark.parametrize(
    ("seen", "half", "text", "stay"),
    [
        # who makes or reads 90000; a factor of 2 is left to other inputs
        ({"b": Extremes(0, 90000, samples=1, counted=4, beyond=2)}, "float16", GROWS, "large moved"),
        ({"b": Extremes(-32000, 1)}, "float16", GROWS, ""),
        ({"b": Extremes(-33000, 1)}, "float16", GROWS, "large moved"),
        ({"c": Extremes(0, 90000)}, "float16", GROWS, "moved last"),
        ({"b": Extremes(1, 1e30)}, "bfloat16", GROWS, ""),
        # a mask on its path to a softmax is clamped, observed or not; another product stays float32
        ({"a": Extremes(-3.4e38, 0), "s": Extremes(1, 5)}, "float16", MASKED, ""),
        ({"y": Extremes(1, 1e5)}, "float16", MASKED, "last"),
    ],
)
def test_who_reads_or_makes_what_is_too_large_stays(seen, half, text, stay):
    """With the reason; other nodes do not."""
    reasons = held(seen, half, text)
    assert set(reasons) == set(stay.split())
    if seen["b" if "b" in seen else next(iter(seen))].beyond:
        told = "9e+04 was seen in 'b' (50.00% of its elements are beyond), and float16 ends at 65504"
        assert reasons["large"] == told


SQUARES = """g (float[8,16] x) => (float[8,16] y) <float[16,16] w, float[16,16] v, int64[1] last = {-1}> {
    a = MatMul (x, w) b = Mul (a, a) s = ReduceSum (b, last) d = Add (s, b) y = MatMul (d, v) }"""


def test_given_samples_free_what_is_denied_for_its_range(tmp_path):
    """A square and a sum become half where the given samples leave a factor of 16 to half's end.

    Synthetic inputs hold what leaves half's range, and prove nothing of others.
    """
    proto = model(SQUARES, {"w": np.eye(16, dtype=np.float32)})
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    given, large = (amp_rewrite.observe(proto, {"x": size * x}) for size in (0.5, 30.0))
    made = amp_rewrite.observe(proto, {"x": 0.5 * x}, inputs=InputSource(seed=0))
    for seen, half in ((given, {"b", "s"}), (large, set()), (made, set()), (made.merge(given), set())):
        assert values_in_half(amp_rewrite.analyze(proto, observed=seen)) & {"b", "s"} == half
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=0.5 * x)
    done = commands.run(
        tmp_path / "m.onnx", "--data", tmp_path / "x.npz", f"--save=plan={tmp_path / 'p.json'}"
    )
    assert done.exit_code == 0, done.output
    analysis = amp_rewrite.analyze(tmp_path / "m.onnx", replay=amp_rewrite.load_plan(tmp_path / "p.json"))
    assert values_in_half(analysis) >= {"b", "s"}
