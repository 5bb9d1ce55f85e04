"""Steps of moving averages outside of loops are float32; other weighted sums are half."""

import numpy as np
import onnx
import pytest

from amp_rewrite import emulate
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import Options
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "it is a step of a moving average, and half would round away what that adds"
WAYS = {
    "two weights": "a = Mul (s, most) b = Mul (h, little) n = Add (a, b)",
    "the other way round": "a = Mul (little, h) b = Mul (most, s) n = Add (a, b)",
    "a step": "d = Sub (h, s) b = Mul (d, little) n = Add (s, b)",
}
OTHERS = {
    "two halves": "a = Mul (s, half) b = Mul (h, half) n = Add (a, b)",
    "a residual": "k = Tanh (h) b = Mul (k, little) n = Add (h, b)",
    "weights of more than 1": "a = Mul (s, most) b = Mul (h, half) n = Add (a, b)",
    "layers that are weighed": """k = Relu (h) a = Mul (k, most) q = Tanh (h) b = Mul (q, little)
        n0 = Add (a, b) n = Add (n0, s)""",
    "a step from another": "k = Tanh (h) d = Sub (h, k) b = Mul (d, little) n = Add (h, b)",
}


def _network(way: str) -> str:
    """A layer, a state that is given and returned, and a layer behind it."""
    return f"""g (float[64,64] x, float[64,64] s) => (float[64,64] n, float[64,64] y)
    <float[64,64] w, float[64,64] v, float most = {{0.999}}, float little = {{0.001}},
    float half = {{0.5}}, float tenth = {{0.1}}> {{
        h = MatMul (x, w)
        {way}
        r = Relu (n)
        y = MatMul (r, v) }}"""


@pytest.mark.parametrize("way", WAYS)
def test_a_step_of_a_moving_average_stays(way: str):
    """What weighs the state and what is new, and adds them up, is float32; the layers around are half."""
    text = _network(WAYS[way])
    assert kept(text) == dict.fromkeys(set("abn") if "a =" in text else set("dbn"), REASON)
    assert {"h", "y"} <= in_half(text)


@pytest.mark.parametrize(("options", "stays"), [(None, False), (Options(half=BFLOAT16), True)])
def test_a_step_that_half_does_not_round_away_is_none(options: Options | None, *, stays: bool):
    """A step of a tenth is much larger than what float16 rounds, but not than what bfloat16 does."""
    text = _network("d = Sub (h, s) b = Mul (d, tenth) n = Add (s, b)")
    assert ("n" in kept(text, options)) is stays


@pytest.mark.parametrize("way", OTHERS)
def test_other_weighted_sums_are_not_held(way: str):
    """Means of two, residuals that are scaled, and steps away from something else."""
    assert kept(_network(OTHERS[way])) == {}


LAYERS = {
    "steps of an average": "d0 = Sub (h, h0) b0 = Mul (d0, tenth) s0 = Add (b0, h0)",
    "a layer": "a0 = Mul (h0, nine) b0 = Mul (h, tenth) s0 = Add (a0, b0)",
}


@pytest.mark.parametrize("way", LAYERS)
def test_a_state_is_made_by_a_step(way: str):
    """A second step begins with what the first one of the same weight makes; one that begins with a layer
    is none.
    """
    text = f"""g (float[64,64] x) => (float[64,64] y)
    <float[64,64] w, float[64,64] v, float tenth = {{{{0.1}}}}, float nine = {{{{0.9}}}}> {{{{
        h = MatMul (x, w) h0 = Tanh (h)
        {LAYERS[way]}
        {{second}}
        y = MatMul (n, v) }}}}"""
    options = Options(half=BFLOAT16)
    assert kept(text.format(second="n = Relu (s0)"), options) == {}
    second = kept(text.format(second="d = Sub (h, s0) b = Mul (d, tenth) n = Add (s0, b)"), options)
    assert second == dict.fromkeys("dbn", REASON)
    third = kept(
        text.format(second="r = Relu (s0) d = Sub (h, r) b = Mul (d, tenth) n = Add (r, b)"), options
    )
    assert third == {}


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", WAYS)
def test_a_moving_average_arrives(way: str):
    """After 2000 steps the state is where the original's is."""
    one = np.eye(64, dtype=np.float32)
    proto = model(_network(WAYS[way]), {"w": one, "v": one})
    states = [_after_steps(each) for each in (proto, emulate(rewritten(proto).model))]
    assert np.abs(states[0] - states[1]).max() < 2e-3


def _after_steps(proto: onnx.ModelProto) -> np.ndarray:
    """The state after 2000 steps of numbers around 1."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    source, state = np.random.default_rng(0), np.zeros((64, 64), np.float32)
    for _ in range(2000):
        data = source.normal(1, 1, (64, 64)).astype(np.float32)
        state = session.run(["n"], {"x": data, "s": state})[0]
    return state
