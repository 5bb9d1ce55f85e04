"""Observation: extremes from runs of the float32 model, and what they keep in float32."""

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.errors import FeedError
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import Options
from amp_rewrite.policy.reasons import in_words
from amp_rewrite.running.inputs.feeds import InputSource
from amp_rewrite.running.sessions import Device
from tests import commands
from tests.text import model, values_in_half

pytest.importorskip("onnxruntime")
GROWS = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {300, 0, 0, 300}, float[2,2] v = {1, 0, 0, 1}> {
    [small] a = MatMul (x, w) [large] b = MatMul (a, w) [moved] c = Transpose (b) [last] d = MatMul (c, v)
    [bounded] y = Tanh (d) }"""
"""The second product reaches 90000 for an x of 1, which float16 turns into infinity and then into NaN."""
SAMPLE = {"x": np.eye(2, dtype=np.float32)}
TINY = {"x": np.eye(2, dtype=np.float32) / 1000}


def held(seen, options=None, text=GROWS):
    """The reasons that observation keeps nodes in float32, by the name of the node."""
    made = amp_rewrite.analyze(model(text), options or Options(rescale=False), observed=seen)
    entries = made.painting.entries
    return {
        unit.node.name: in_words(entries[unit.index].evidence)
        for unit in made.graph.units
        if entries[unit.index].authority is Authority.OBSERVATION
    }


@pytest.fixture
def path(tmp_path):
    """The model as a file, with inputs on which it overflows in the same folder."""
    onnx.save(model(GROWS), tmp_path / "model.onnx")
    np.savez(tmp_path / "ones.npz", **SAMPLE)
    return tmp_path / "model.onnx"


# ---- looking


def test_extremes_of_all_floats_over_all_samples():
    """Inputs and intermediate values, with their lowest and highest element."""
    seen = amp_rewrite.observe(model(GROWS), [SAMPLE, TINY], device=Device.CPU)
    assert seen.keys() == {"x", "a", "b", "c", "d", "y"}
    assert seen["x"] == Extremes(0, 1, samples=2, counted=8)
    assert seen["b"] == Extremes(0, 90000, samples=2, counted=8, beyond=2)


def test_sparse_values_are_passed_over():
    """A sparse Constant has no extremes, and does not prevent observation."""
    proto = model("g (float[4,4] x) => (float[4,4] y) { y = Relu (x) }")
    values = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [1], [1])
    indices = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [3])
    sparse = onnx.helper.make_sparse_tensor(values, indices, [4, 4])
    proto.graph.node.add(op_type="Constant", output=["s"]).attribute.append(
        onnx.helper.make_attribute("sparse_value", sparse)
    )
    proto.graph.node.add(op_type="MatMul", input=["y", "s"], output=["z"])
    seen = amp_rewrite.observe(proto, [{"x": np.ones((4, 4), np.float32)}], device=Device.CPU)
    assert seen.keys() == {"x", "y", "z"}


def test_without_a_sample_there_is_nothing_to_look_at():
    """As in `verify`, no sample is an error."""
    with pytest.raises(FeedError, match="no sample"):
        amp_rewrite.observe(model(GROWS), [], device=Device.CPU)


# ---- deciding


def test_who_reads_or_makes_what_is_too_large_stays():
    """Producer, mover and consumer of 90000 stay float32 with the reason; other nodes do not."""
    reasons = held(amp_rewrite.observe(model(GROWS), [SAMPLE], device=Device.CPU))
    assert reasons.keys() == {"large", "moved", "last", "bounded"}
    assert (
        reasons["large"]
        == "9e+04 was seen in 'b' (50.00% of its elements are beyond), and float16 ends at 65504"
    )


@pytest.mark.parametrize(("most", "stays"), [(32000, False), (33000, True)])
def test_there_is_headroom_for_other_inputs(most, stays):
    """A value just within range may overflow with other inputs: a factor of 2 is required."""
    assert ("large" in held({"b": Extremes(-most, 1)})) == stays


def test_bfloat16_has_room_for_all_of_float32():
    """Values too large for float16 are not too large for bfloat16."""
    assert held({"b": Extremes(1, 1e30)}, Options(half=BFLOAT16)) == {}


def test_a_mask_may_be_huge():
    """A mask on its path to a softmax is clamped, observed or not; another product stays float32."""
    text = """g (float[2,2] x, bool[2,2] k) => (float[2,2] y) <float[2,2] w, float fill = {-3.4e38}> {
        [scores] s = MatMul (x, w) [mask] a = Where (k, s, fill) [soft] p = Softmax (a)
        [last] y = MatMul (p, w) }"""
    assert held({"a": Extremes(-3.4e38, 0), "s": Extremes(1, 5)}, text=text) == {}
    assert held({"y": Extremes(1, 1e5)}, text=text).keys() == {"last"}


# ---- the main job


def test_looking_first_needs_no_verdict(path):
    """With --calibrate, the first plan uses the observation, and no comparison is needed."""
    calibrated = (path, "--calibrate", path.with_name("ones.npz"))
    assert "of 5 nodes in float16" in commands.run(*calibrated, "--dry-run").output
    result = commands.run(*calibrated, "--skip=verify", "-v")
    assert result.exit_code == 0
    assert "observed 4 parts" in result.output


SQUARES = """g (float[8,16] x) => (float[8,16] y) <float[16,16] w, float[16,16] v, int64[1] last = {-1}> {
    a = MatMul (x, w) b = Mul (a, a) s = ReduceSum (b, last) d = Add (s, b) y = MatMul (d, v) }"""


@pytest.mark.parametrize(("size", "half"), [(0.5, {"b", "s"}), (30.0, set())])
def test_samples_of_the_user_free_what_is_denied_for_its_range(tmp_path, size, half):
    """A square and a sum become half where the given samples leave a factor of 16 to half's end; synthetic
    inputs free nothing.
    """
    onnx.save(model(SQUARES, {"w": np.eye(16, dtype=np.float32)}), tmp_path / "m.onnx")
    sample = size * np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=sample)
    done = commands.run(tmp_path / "m.onnx", "--data", tmp_path / "x.npz", "--save-plan", tmp_path / "p.json")
    assert done.exit_code == 0, done.output
    analysis = amp_rewrite.analyze(tmp_path / "m.onnx", replay=amp_rewrite.load_plan(tmp_path / "p.json"))
    assert values_in_half(analysis) & {"b", "s"} == half


def test_synthetic_inputs_free_nothing():
    """They hold what leaves half's range, and prove nothing of others."""
    proto = model(SQUARES, {"w": np.eye(16, dtype=np.float32)})
    sample = {"x": 0.5 * np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)}
    given = amp_rewrite.observe(proto, sample)
    made = amp_rewrite.observe(proto, sample, inputs=InputSource(seed=0))
    for seen, half in ((given, {"b", "s"}), (made, set()), (made.merge(given), set())):
        assert values_in_half(amp_rewrite.analyze(proto, observed=seen)) & {"b", "s"} == half
