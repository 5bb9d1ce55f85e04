"""Variances that are taken from means of squares stay float32 from the mean on; other differences do not."""

import numpy as np
import pytest

from amp_rewrite import verify
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "it makes a variance of much larger squares, and half would round those"
WAYS = {
    "of the last axis": """q = Mul (h, h) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]> (h)
        r = Mul (m, m) d = Sub (s, r)""",
    "of powers": """q = Pow (h, two) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]> (h)
        r = Pow (m, two) d = Sub (s, r)""",
    "of sums over a count": """s0 = ReduceSumSquare <axes = [1]> (h) s = Div (s0, count)
        m0 = ReduceSum (h, last) r0 = Mul (m0, m0) m = Div (r0, count) r = Div (m, count) d = Sub (s, r)""",
    "with weights": """q0 = Mul (h, h) q = Mul (p, q0) s = ReduceSum (q, last) m0 = Mul (h, p)
        m = ReduceSum (m0, last) r = Mul (m, m) d = Sub (s, r)""",
    "a covariance": """q = Mul (h, p) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]> (h)
        n = ReduceMean <axes = [1]> (p) r = Mul (m, n) d = Sub (s, r)""",
    "with axes left out": """q = Mul (h, h) s = ReduceMean <axes = [1], keepdims = 0> (q)
        m0 = ReduceMean <axes = [1], keepdims = 0> (h) m = Unsqueeze (m0, last) r = Mul (m, m)
        t = Unsqueeze (s, last) d = Sub (t, r)""",
}
OTHERS = {
    "a mean of something else": """q = Abs (h) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]> (p)
        r = Abs (m) d = Sub (s, r)""",
    "a mean less its square": """s = ReduceMean <axes = [1]> (h) m = Identity (s) r = Mul (s, s)
        d = Sub (s, r)""",
    "two means": """s = ReduceMean <axes = [1]> (h) m = ReduceMean <axes = [1]> (p) d = Sub (s, m)""",
    "a product of other means": """q = Mul (p, k) s = ReduceMean <axes = [1]> (q)
        m = ReduceMean <axes = [1]> (h) n = ReduceMean <axes = [1]> (p) r = Mul (m, n) d = Sub (s, r)""",
}


def _network(way: str) -> str:
    """Layers before and behind the variance of 16 numbers, in each of 64 rows."""
    return f"""g (float[64,16] x) => (float[64,8] y) <float[16,16] w, float[16,16] v, float[16,16] u,
        float[1,8] o, float[16] shift, int64[1] last = {{1}}, float two = {{2}}, float count = {{16}}> {{
        a = MatMul (x, w) h = Add (a, shift) b = MatMul (x, v) p = Sigmoid (b) c = MatMul (x, u) k = Tanh (c)
        {way}
        y = MatMul (d, o) }}"""


@pytest.mark.parametrize("way", WAYS)
def test_what_makes_a_variance_stays(way: str):
    """The means and what takes them from each other are float32; the layers before are half."""
    text = _network(WAYS[way])
    found = kept(text)
    assert {"m", "s", "d"} <= {name for name, reason in found.items() if reason == REASON}
    half = in_half(text)
    assert {"a", "h"} <= half
    assert not half & {"q", "s", "m", "n", "r", "d"}


@pytest.mark.parametrize("way", OTHERS)
def test_other_differences_are_half(way: str):
    """Means of one thing and of another are no variance."""
    text = _network(OTHERS[way])
    assert REASON not in kept(text).values()
    assert {"m", "s"} & in_half(text)


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", [name for name in WAYS if name not in ("with weights", "a covariance")])
def test_a_variance_of_large_numbers_is_what_it_was(way: str):
    """Numbers around 30 whose variance is 1/4: half has steps of 1/2 for their squares."""
    weights = {"w": np.eye(16, dtype=np.float32), "shift": np.full(16, 30, np.float32)}
    proto = model(_network(WAYS[way]), weights)
    points = np.round(np.random.default_rng(0).normal(0, 0.5, (64, 16)) * 64) / 64
    verdict = verify(proto, rewritten(proto).model, {"x": points.astype(np.float32)}, device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < 2e-3


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
def test_a_variance_in_a_window_is_close():
    """That of SSIM, whose averages are those of a Conv; the layer before is half."""
    text = """g (float[1,1,32,32] x) => (float[1,1,24,24] y)
        <float[1,1,5,5] w, float[1,1,5,5] k, float c = {0.0009}> {
        h = Conv (x, k) q = Mul (h, h) s = Conv (q, w) m = Conv (h, w) r = Mul (m, m) d = Sub (s, r)
        y = Add (d, c) }"""
    weights = {name: np.full((1, 1, 5, 5), 0.04, np.float32) for name in "wk"}
    assert {"q", "s", "m", "r", "d"} <= kept(text, weights=weights).keys()
    assert "h" in in_half(text, weights=weights)
    proto = model(text, weights)
    feeds = {"x": 0.6 + 0.05 * np.random.default_rng(0).random((1, 1, 32, 32), np.float32)}
    assert verify(proto, rewritten(proto).model, feeds).error < 1e-2
