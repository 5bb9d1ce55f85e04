"""What a loop adds up stays float32; what it computes otherwise from step to step does not."""

import numpy as np
import pytest

from amp_rewrite import verify
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "it is added up step by step, and half would round it in every step"
SUMS = {
    "a sum": "r = Add (s, v)",
    "a count": "r = Add (one, s)",
    "a moving average": "p = Mul (s, keep) q = Mul (v, part) r = Add (p, q)",
    "a sum of some": "q = Add (s, v) m = Greater (i, one) r = Where (m, q, s)",
    "a selective scan": "p = Sigmoid (v) q = Mul (s, p) r = Add (q, v)",
    "several terms": "q = Add (s, v) t = Sub (q, one) r = Identity (t)",
    "a best path": """p = Unsqueeze (s, at) q = Add (p, u) m = ReduceMax <axes = [0], keepdims = 0> (q)
        r = Add (m, v)""",
    "a best path by columns": """p = Unsqueeze (s, at) q = Add (p, u) t = Transpose <perm = [1, 0]> (q)
        m = ReduceMin <axes = [1], keepdims = 0> (t) r = Sub (m, v)""",
    "time warping": "p = Pad (s, shift, far) q = Slice (p, at, last, at) m = Min (s, q) r = Add (m, v)",
    "a sum above a floor": "q = Add (s, v) r = Max (q, one)",
    "the best of a beam": "q = Add (s, v) p, i0 = TopK (q, all) r = Identity (p)",
    "a moving average by differences": "p = Sub (v, s) q = Mul (p, part) r = Add (s, q)",
    "a sum from 0 on": "q = Add (s, v) r = Relu (q)",
    "a sum within bounds": "p = Mul (s, keep) q = Add (p, v) r = Clip (q, one, far)",
    "time warping by parts": """p = Slice (s, at, last, at) q = Concat <axis = 0> (start, p) m = Min (s, q)
        r = Add (m, v)""",
    "sums in a table": """p = Gather (s, order) q = Add (p, v) i0 = Unsqueeze (order, step)
        q0 = Expand (q, all) r = ScatterND (s, i0, q0)""",
    "sums of chosen ones": "j = Gather (s, order) q = Add (j, v) r = GatherElements (q, order)",
}
OTHERS = {
    "a residual": "p = Tanh (s) q = Mul (p, v) r = Add (s, q)",
    "a gate": "p0 = Add (s, v) p = Sigmoid (p0) q = Mul (s, p) r = Add (q, v)",
    "a choice of something else": "q = Add (s, v) m = Greater (i, one) r = Where (m, q, v)",
    "an activation of a sum": "q = Add (s, v) r = Tanh (q)",
    "a product": "r = Mul (s, v)",
    "a cache": "p = Slice (s, step, all, at) q = Slice (v, at, step, at) r = Concat <axis = 0> (p, q)",
    "a cache of a layer": """h = MatMul (s, u) p = Slice (s, step, all, at) q = Slice (h, at, step, at)
        f = Slice (s, at, step, at) d = Add (q, f) r = Concat <axis = 0> (p, d)""",
    "a maximum": "p = Max (s, v) r = Min (p, one)",
    "a maximum of an activation": "p = Tanh (s) q = Max (s, p) r = Add (q, v)",
    "a residual of a loop": """q = Scan <num_scan_inputs = 1, body = c (float[64] h, float[64] j)
        => (float[64] k) { p = Add (h, j) k = Tanh (p) }> (s, a) r = Add (s, q)""",
    "a residual of a branch": """m = ReduceMax <keepdims = 0> (v) z = Greater (m, one)
        q = If (z) <then_branch = c () => (float[64] p) { p = MatMul (s, u) },
            else_branch = d () => (float[64] p2) { p2 = Identity (v) }> r = Add (s, q)""",
}


def _scan(step: str) -> str:
    """A layer, and a Scan over its 64 numbers, with a layer in the body; `s` becomes `r`."""
    return f"""g (float[T,64] x, float[64] s0) => (float[64] y) <float[64,64] w, float[64,64] u,
        float one = {{1}}, float keep = {{0.999}}, float part = {{0.001}}, float far = {{99}}, float[1] start,
        int64[1] at = {{0}}, int64[1] last = {{-1}}, int64[2] shift = {{1, 0}}, int64[1] all = {{64}},
        int64[1] step = {{1}}, int64[64] order> {{
        a = MatMul (x, w)
        y = Scan <num_scan_inputs = 1, body = b (float[64] s, float[64] i) => (float[64] r) {{
            v = MatMul (i, u)
            {step}
        }}> (s0, a) }}"""


def _relative_error(original, result, feeds) -> float:
    """The relative L2 error: sums are large beside what varies in them, which is what `error` is about."""
    return verify(original, result, feeds).outputs[0].metrics.relative_l2


@pytest.mark.parametrize("step", SUMS)
def test_what_a_loop_adds_up_stays(step: str):
    """The sum is float32 from step to step; the layers before the loop and within are half."""
    text = _scan(SUMS[step])
    found = kept(text)
    assert set(found.values()) == {REASON}
    half = in_half(text)
    assert {"a", "v"} <= half
    assert "r" not in half


@pytest.mark.parametrize("step", OTHERS)
def test_other_states_are_half(step: str):
    """Where the state is more than added to, it is that of a layer."""
    text = _scan(OTHERS[step])
    assert kept(text) == {}
    assert {"a", "v", "r"} <= in_half(text)


def test_a_gate_of_another_state_makes_a_layer():
    """The cell of an LSTM is multiplied with what its other state makes: it is no sum."""
    text = """g (float[T,64] x, float[64] h0, float[64] c0) => (float[64] y, float[64] z) <float[64,64] u> {
        y, z = Scan <num_scan_inputs = 1, body = b (float[64] h, float[64] c, float[64] i)
            => (float[64] k, float[64] d) { v = MatMul (h, u) w = Add (v, i) f = Sigmoid (w)
            m = Mul (c, f) g = Tanh (i) d = Add (m, g) k = Tanh (d) }> (h0, c0, x) }"""
    assert kept(text) == {}


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("frames", [64, 600, 3000])
def test_a_phase_is_as_exact_as_what_adds_it_up(frames: int):
    """What a layer gives to a CumSum is float32 from the layer on, as is the sum: a source of a vocoder."""
    text = """g (float[1,T,16] h) => (float[1,T,16] y) <float[16,1] f, float[16,16] w, int64 axis = {1},
        float rate = {0.01}, float one = {1}, float turn = {6.2831855}> {
        a = MatMul (h, f) b = Relu (a) c = Mul (b, rate) d = Mod <fmod = 1> (c, one) s = CumSum (d, axis)
        p = Mul (s, turn) q = Sin (p) e = Add (h, q) y = MatMul (e, w) }"""
    assert {"b", "c", "d"} <= kept(text).keys()
    assert "y" in in_half(text)
    proto = model(text)
    feeds = {"h": np.random.default_rng(0).normal(2, 0.1, (1, frames, 16)).astype(np.float32)}
    assert _relative_error(proto, rewritten(proto).model, feeds) < 1e-3


@pytest.mark.parametrize("activation", ["Exp", "LeakyRelu", "Sigmoid", "Softplus", "Tanh"])
def test_what_a_layer_activates_is_as_exact_as_what_adds_it_up(activation: str):
    """A CumSum of activations: what lies between the layer and the sum is float32, whichever it is."""
    text = f"""g (float[1,T,16] h) => (float[1,T,16] y) <float[16,16] f, float[16,16] w,
        int64 axis = {{1}}> {{ a = MatMul (h, f) b = {activation} (a) s = CumSum (b, axis)
        q = Sin (s) y = MatMul (q, w) }}"""
    assert "b" in kept(text)
    assert {"a", "y"} <= set(in_half(text))


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
def test_a_count_goes_on_beyond_2048():
    """The mean of 3,000 rows is close, made of a sum and a count that a Loop carries."""
    text = """g (float[N,64] x, int64 n) => (float[64] y) <float[64,64] w, float[64] zeros, float zero = {0},
        float one = {1}, bool go = {1}> {
        a = MatMul (x, w)
        total, count = Loop (n, go, zeros, zero) <body = b (int64 i, bool c, float[64] s, float k)
            => (bool d, float[64] t, float l) {
            d = Identity (c) row = Gather (a, i) t = Add (s, row) l = Add (k, one) }>
        y = Div (total, count) }"""
    weights = {"zeros": np.zeros(64, np.float32)}
    proto = model(text, weights)
    result = rewritten(proto)
    feeds = {"x": 1 + np.random.default_rng(0).random((3000, 64), np.float32), "n": np.array(3000)}
    assert "a" in in_half(text, weights=weights)
    assert _relative_error(proto, result.model, feeds) < 1e-4


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("step", ["a best path", "time warping"])
def test_scores_of_paths_keep_their_differences(step: str):
    """After 512 steps, scores of thousands are no further off than what is added to them."""
    random = np.random.default_rng(0)
    weights = {"w": random.random((64, 64), np.float32) / 4, "u": random.random((64, 64), np.float32) / 4}
    proto = model(_scan(SUMS[step]), weights)
    feeds = {"x": random.random((512, 64), np.float32), "s0": np.zeros(64, np.float32)}
    assert _relative_error(proto, rewritten(proto).model, feeds) < 1e-4
