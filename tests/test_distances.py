"""Squared distances of squares and a product stay float32; other products beside squares are half."""

import numpy as np
import pytest

from amp_rewrite import verify
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "it makes a squared distance of much larger squares, and half would round those"
WAYS = {
    "squares less a product": """t = Transpose <perm = [1, 0]> (b) p = MatMul (a, t) [double] q = Mul (p, two)
        sa = Mul (a, a) na = ReduceSum (sa, last) sb = Mul (b, b) nb = ReduceSum <keepdims = 0> (sb, last)
        s = Sub (na, q) d = Add (s, nb)""",
    "a product less squares": """t = Transpose <perm = [1, 0]> (b) m = Mul (a, two) p = MatMul (m, t)
        q = Neg (p) na = ReduceSumSquare <axes = [1]> (a) sb = Pow (b, two)
        nb = ReduceSum <keepdims = 0> (sb, last) u = Unsqueeze (nb, first) s = Add (na, u) d = Add (q, s)""",
    "of negative squares": """t = Transpose <perm = [1, 0]> (b) p = MatMul (a, t) q = Mul (minus, p)
        na = ReduceSumSquare <axes = [1]> (a) ma = Neg (na) s = Sub (ma, q) sb = Pow (b, two)
        nb = ReduceSum <keepdims = 0> (sb, last) r = Sub (s, nb) d = Neg (r)""",
    "an Einsum": """p = Einsum <equation = "ik,jk->ij"> (a, b) q = Mul (p, two)
        na = ReduceSumSquare <axes = [1]> (a) s = Sub (na, q) sb = Pow (b, two)
        nb = ReduceSum <keepdims = 0> (sb, last) d = Add (s, nb)""",
    "as cdist": """ta = Mul (a, minus) na = ReduceSumSquare <axes = [1]> (a)
        ca = Concat <axis = 1> (ta, na, ones)
        nb = ReduceSumSquare <axes = [1]> (b) cb = Concat <axis = 1> (b, ones, nb)
        t = Transpose <perm = [1, 0]> (cb) p = MatMul (ca, t) d = Max (p, zero)""",
}
OTHERS = {
    "a product of something else": """t = Transpose <perm = [1, 0]> (b) q = MatMul (o, t)
        na = ReduceSumSquare <axes = [1]> (a) d = Add (q, na)""",
    "a norm that is appended": """na = ReduceSumSquare <axes = [1]> (o) ca = Concat <axis = 1> (a, na, ones)
        d = MatMul (ca, wide)""",
    "a product alone": "t = Transpose <perm = [1, 0]> (b) d = MatMul (a, t)",
}


def _network(way: str) -> str:
    """Layers before and behind distances of 64 points from 64 others, of 16 numbers each."""
    return f"""g (float[64,16] x, float[64,16] z) => (float[64,8] y)
    <float[16,16] w, float[16,16] v, float[16,16] k, float[64,8] out, float[18,64] wide, float[64,1] ones,
    int64[1] last = {{1}}, int64[1] first = {{0}}, float two = {{2}}, float minus = {{-2}},
    float zero = {{0}}, float scale = {{-0.5}}> {{
        a = MatMul (x, w) b = MatMul (z, v) o = MatMul (x, k)
        {way}
        g1 = Mul (d, scale) e = Exp (g1) y = MatMul (e, out) }}"""


@pytest.mark.parametrize("way", WAYS)
def test_the_product_of_a_distance_stays(way: str):
    """The product is float32, and so is what takes it from the squares; layers around are half."""
    text = _network(WAYS[way])
    found = kept(text)
    assert "p" in found
    assert set(found.values()) == {REASON}
    half = in_half(text)
    assert {"a", "b", "y"} <= half
    assert not half & {"p", "q", "s", "e", "d"}


@pytest.mark.parametrize("way", OTHERS)
def test_other_products_are_half(way: str):
    """A product beside the squares of what it does not multiply is a product as any other."""
    text = _network(OTHERS[way])
    assert REASON not in kept(text).values()
    assert {"d", "q"} & in_half(text)


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", WAYS)
def test_points_that_are_close_are_told_apart(way: str):
    """Points 100 from the origin and about 1 from each other have the distances that they had."""
    source, one = np.random.default_rng(0), np.eye(16, dtype=np.float32)
    weights = {"w": one, "v": one, "ones": np.ones((64, 1), np.float32)}
    proto = model(_network(WAYS[way]), weights)
    points = 25 + np.round(source.normal(0, 0.3, (2, 64, 16)) * 64) / 64
    feeds = {"x": points[0].astype(np.float32), "z": points[1].astype(np.float32)}
    verdict = verify(proto, rewritten(proto).model, feeds, device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < 2e-3
