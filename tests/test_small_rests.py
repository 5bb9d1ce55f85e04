"""What is taken from 1 and is near 1 by what makes it is float32, with what is left; other rests are half."""

import numpy as np
import pytest

from amp_rewrite import verify
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import Options
from tests.test_near_one import REASON
from tests.text import RUNS, in_half, kept, model, rewritten

NORM = "n{0} = ReduceL2 <axes = [1]> ({1}) o{0} = Max (n{0}, tiny) v{0} = Div ({1}, o{0})"
WAYS = {
    "a noisy or": """a = Sub (h, six) p = Sigmoid (a) q = Sub (one, p) r = ReduceProd <axes = [1]> (q)
        d = Sub (one, r) l = Mul (d, g0)""",
    "one of two": """a = Sub (h, six) p = Sigmoid (a) q = Sub (one, p) b = Sub (g0, six) s = Sigmoid (b)
        t = Sub (one, s) r = Mul (q, t) d = Sub (one, r) l = Mul (d, g0)""",
    "a gate that is nearly open": "a = Add (h, eight) p = Sigmoid (a) d = Sub (one, p) l = Mul (d, g0)",
    "and moved": """a = Sub (h, minus) p = Sigmoid (a) t = Transpose (p) d = Sub (one, t)
        l = Mul (d, g0)""",
    "a cosine distance": f"""{NORM.format(1, "h")} {NORM.format(2, "k")} t = Transpose <perm = [1, 0]> (v2)
        p = MatMul (v1, t) d = Sub (one, p) l = Mul (d, g0)""",
}
OTHERS = {
    "a gate": "p = Sigmoid (h) d = Sub (one, p) l = Mul (d, g0)",
    "a gate with a bias": "a = Add (h, one) p = Sigmoid (a) d = Sub (one, p) l = Mul (d, g0)",
    "a gate of two": """a = Add (h, eight) p = Sigmoid (a) q = Mul (p, h) d = Sub (one, p) b = Mul (d, g0)
        l = Add (q, b)""",
    "a product": "p = MatMul (h, g0) d = Sub (one, p) l = Mul (d, g0)",
    "a product of gates": "p = Sigmoid (h) q = Sigmoid (g0) r = Mul (p, q) d = Sub (one, r) l = Mul (d, g0)",
}


def _network(way: str) -> str:
    """Layers before and behind a way."""
    return f"""g (float[64,64] x, float[64,64] z) => (float[64,64] y)
    <float[64,64] w, float[64,64] v, float[64,64] u, float one = {{1}}, float six = {{6}},
    float eight = {{8}}, float minus = {{-8}}, float tiny = {{0.0001}}> {{
        h = MatMul (x, w) g0 = MatMul (z, u) k = Add (h, g0)
        {way}
        y = MatMul (l, v) }}"""


@pytest.mark.parametrize("options", [None, Options(half=BFLOAT16)])
@pytest.mark.parametrize("way", WAYS)
def test_a_small_rest_stays(way: str, options: Options | None):
    """What is taken from 1 is float32 with what is left; the layers around are half."""
    text = _network(WAYS[way])
    found = kept(text, options)
    assert {"p", "d"} <= found.keys()
    assert set(found.values()) == {REASON}
    half = in_half(text, options)
    assert {"h", "g0", "y"} <= half
    assert not half & {"p", "q", "s", "t", "r", "d"}


@pytest.mark.parametrize("way", OTHERS)
def test_other_rests_are_half(way: str):
    """A gate may be anything between 0 and 1, and a product any number."""
    text = _network(OTHERS[way])
    assert kept(text) == {}
    assert {"p", "d", "l"} <= in_half(text)


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", WAYS)
def test_a_small_rest_is_close(way: str):
    """Of what is left of 1 no digits are lost."""
    source, one = np.random.default_rng(0), np.eye(64, dtype=np.float32)
    proto = model(_network(WAYS[way]), {"w": one, "v": one, "u": one})
    x, z = source.normal(0, 1, (2, 64, 64)).astype(np.float16).astype(np.float32)
    if "cosine" in way:
        x, z = np.tile(x[:1], (64, 1)), z / 16
    verdict = verify(proto, rewritten(proto).model, {"x": x, "z": z}, device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < 2e-3
