"""Positions of Gaussians stay float32 where a grid is taken from them; other differences are half."""

import numpy as np
import pytest

from amp_rewrite import verify
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "it makes how far positions of a Gaussian are from a grid, and half would round those"
SQUARES = "q = Mul (d, d) e0 = Mul (q, minus) e1 = Exp (e0)"
WAYS = {
    "points of a layer": f"t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) {SQUARES}",
    "points of an input": f"p = Mul (z, size) d = Sub (grid, p) {SQUARES}",
    "projected points": f"p0 = MatMul (points, camera) p = Transpose (p0) d = Sub (p, grid) {SQUARES}",
    "a grid of sizes": f"""s = Shape (x) n = Gather <axis = 0> (s, last) i = Range (zero, n, unit)
        r = Cast <to = 1> (i) t = Sigmoid (h) p = Mul (t, size) d = Sub (p, r) {SQUARES}""",
    "a power": """t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) q = Pow (d, two) e0 = Mul (q, minus)
        e1 = Exp (e0)""",
    "of a covariance": """t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) a = Mul (d, shape)
        q = Mul (a, d) e0 = Neg (q) e1 = Exp (e0)""",
}
OTHERS = {
    "no square": "t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) e0 = Mul (d, minus) e1 = Exp (e0)",
    "no exponential": "t = Sigmoid (h) p = Mul (t, size) d = Sub (p, grid) q = Abs (d) e1 = Tanh (q)",
    "features": f"k = MatMul (x, v) p = Mul (k, two) d = Sub (p, h) {SQUARES}",
    "a small grid": f"t = Sigmoid (h) p = Mul (t, two) d = Sub (p, fine) {SQUARES}",
}
GRID = np.arange(64, dtype=np.float32).reshape(1, 64) * 8 + 0.5
WEIGHTS = {"grid": GRID, "fine": GRID / 512}


def _network(way: str) -> str:
    """Layers before and behind Gaussians at a way's positions."""
    return f"""g (float[64,64] x, float[64,1] z, float[1,4] points) => (float[64,64] y)
    <float[64,64] w, float[64,64] v, float[1,64] grid, float[1,64] fine, float[4,64] camera,
    float size = {{512}}, float two = {{2}}, float minus = {{-0.125}}, float[1,64] shape, int64 last = {{1}},
    int64 zero = {{0}}, int64 unit = {{1}}> {{
        h = MatMul (x, w)
        {way}
        y = MatMul (e1, v) }}"""


@pytest.mark.parametrize("way", WAYS)
def test_positions_of_gaussians_stay(way: str):
    """What scales or projects them, and the difference, are float32; the layers around are half."""
    text = _network(WAYS[way])
    found = kept(text, weights=WEIGHTS)
    assert {"p", "d"} <= {name for name, reason in found.items() if reason == REASON}
    half = in_half(text, weights=WEIGHTS)
    assert half >= ({"h", "y"} if "(h)" in WAYS[way] else {"y"})
    assert not half & {"t", "p0", "p", "d", "q", "e0", "e1"}


@pytest.mark.parametrize("way", OTHERS)
def test_other_differences_are_not_held(way: str):
    """Without a square or an exponential, or where there is no grid of pixels."""
    assert kept(_network(OTHERS[way]), weights=WEIGHTS) == {}


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", WAYS)
def test_gaussians_on_pixels_are_close(way: str):
    """Splats of 2 pixels at coordinates up to 512 have half's own error and no more."""
    source = np.random.default_rng(0)
    camera = source.uniform(0, 100, (4, 64)).astype(np.float32)
    weights = {
        **WEIGHTS,
        "v": np.eye(64, dtype=np.float32),
        "w": np.eye(64, dtype=np.float32),
        "camera": camera,
        "shape": np.full((1, 64), 0.125, np.float32),
    }
    proto = model(_network(WAYS[way]), weights)
    place = np.clip(GRID + source.normal(0, 2, (64, 64)), 1, 511) / 512
    feeds = {
        "x": np.log(place / (1 - place)).astype(np.float16).astype(np.float32),
        "z": source.random((64, 1), np.float32),
        "points": source.random((1, 4), np.float32),
    }
    verdict = verify(proto, rewritten(proto).model, feeds, device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < 2e-3
