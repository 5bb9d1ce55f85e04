"""A displacement of a grid that is taken away again keeps its digits; other differences of sums are half."""

import numpy as np
import pytest

from amp_rewrite import verify
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "it adds to a grid that is taken away again, and half would round what is left"
WAYS = {
    "of a stored grid": "p = Add (grid, h) d = Sub (p, grid)",
    "of two that are equal": "p = Add (h, grid) d = Sub (p, again)",
    "of an input": "p = Add (z, h) d = Sub (p, z)",
    "in two steps": "p = Add (grid, h) k = MatMul (h, v) q = Add (p, k) d = Sub (q, grid)",
    "of sizes": """s = Shape (x) n = Gather <axis = 0> (s, one) i = Range (zero, n, unit)
        r = Cast <to = 1> (i) j = Range (zero, n, unit) t = Cast <to = 1> (j)
        p = Add (r, h) d = Sub (p, t)""",
}
OTHERS = {
    "a bias and a mean": "p = Add (h, bias) d = Sub (p, mean)",
    "of features": "k = MatMul (h, v) p = Add (k, h) d = Sub (p, k)",
    "a number": "p = Add (h, number) d = Sub (p, number)",
}
GRID = np.tile(np.arange(64, dtype=np.float32) * 8 + 0.5, (64, 1))
WEIGHTS = {"grid": GRID, "again": GRID, "bias": GRID[:1], "mean": GRID[:1] + 1}


def _network(way: str) -> str:
    """Layers before and behind a way."""
    return f"""g (float[N,64] x, float[N,64] z) => (float[N,64] y)
    <float[64,64] w, float[64,64] v, float[64,64] grid, float[64,64] again, float[1,64] bias,
    float[1,64] mean, float number = {{100}}, int64 one = {{1}}, int64 zero = {{0}}, int64 unit = {{1}}> {{
        h = MatMul (x, w)
        {way}
        y = MatMul (d, w) }}"""


@pytest.mark.parametrize("way", WAYS)
def test_a_displacement_stays(way: str):
    """Sums with the grid and the difference are float32; the layers around are half."""
    text = _network(WAYS[way])
    found = kept(text, weights=WEIGHTS)
    assert {"p", "d"} <= {name for name, reason in found.items() if reason == REASON}
    half = in_half(text, weights=WEIGHTS)
    assert {"h", "y"} <= half
    assert not half & {"p", "q", "d"}


@pytest.mark.parametrize("way", OTHERS)
def test_other_differences_of_sums_are_half(way: str):
    """What is taken away was not added, or is no grid."""
    text = _network(OTHERS[way])
    assert kept(text, weights=WEIGHTS) == {}
    assert {"p", "d"} <= in_half(text, weights=WEIGHTS)


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", WAYS)
def test_a_small_displacement_is_what_it_was(way: str):
    """A flow of a fraction of a pixel, at coordinates of 500, has half's own error and no more."""
    one = np.eye(64, dtype=np.float32)
    proto = model(_network(WAYS[way]), {**WEIGHTS, "w": one, "v": one / 8})
    feeds = {"x": np.random.default_rng(0).normal(0, 0.3, (64, 64)).astype(np.float32), "z": GRID}
    verdict = verify(proto, rewritten(proto).model, feeds, device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < 2e-3
