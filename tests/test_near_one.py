"""How far a number near 1 is from 1 is not rounded away where it counts; other numbers near 1 are half."""

import numpy as np
import pytest

from amp_rewrite import verify
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import Options
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "how far from 1 something is counts here, and half would round that away"
WAYS = {
    "a logarithm of 1 and a little": "b = Mul (h, tiny) c = Add (b, one) l = Log (c)",
    "a logarithm of a rest": "b = Mul (h, tiny) c = Sub (one, b) l = Log (c)",
    "an atanh": "b = Add (one, h) c = Sub (one, h) d = Div (b, c) k = Log (d) l = Mul (k, half)",
    "a root of a rest": "t = Tanh (h) b = Mul (t, t) c = Sub (one, b) l = Sqrt (c)",
    "a root of a bounded rest": """b = Pow (h, two) n = Neg (b) c = Add (n, one) d = Max (c, tiny)
        l = Sqrt (d)""",
    "a divisor": "t = Tanh (h) b = Mul (t, t) c = Sub (one, b) d = Add (c, tiny) l = Div (g0, d)",
    "a reciprocal": "t = Tanh (h) b = Mul (t, t) c = Sub (one, b) l = Reciprocal (c)",
    "odds": "t = Sigmoid (h) c = Sub (one, t) l = Div (t, c)",
    "a reciprocal root": "t = Sigmoid (h) c = Sub (one, t) l = Pow (c, minus)",
    "a square less 1": "t = Tanh (h) b = Mul (t, t) c = Sub (b, one) n = Neg (c) l = Sqrt (n)",
    "an inverse": "t = Tanh (h) c = Mul (t, high) l = Atanh (c)",
    "a deviation": """k = Abs (h) m = Neg (k) e = Exp (m) c = Add (e, one) q = Log (c) r0 = Relu (h)
        s = Add (r0, q) l = Div (g0, s)""",
    "a decay": "k = Abs (h) m = Neg (k) t = Exp (m) b = Pow (t, two) c = Sub (one, b) l = Sqrt (c)",
    "noise of a step": "b = Gather (table, step) c = Sub (one, b) r = Sqrt (c) l = Mul (r, h)",
}
LARGE = {
    "a logarithm of 1 and a little": 8,
    "a logarithm of a rest": 8,
    "an atanh": 0.02,
    "a decay": 0.02,
    "noise of a step": 1,
}
"""The largest of the data, where it is not 4; of small numbers an atanh is the number itself."""
OTHERS = {
    "a gate": "t = Sigmoid (h) c = Sub (one, t) l = Mul (g0, c)",
    "a slope": "t = Tanh (h) b = Mul (t, t) c = Sub (one, b) l = Mul (g0, c)",
    "a number and 1": "t = Tanh (h) b = Relu (t) c = Add (b, one) l = Div (g0, c)",
    "a rest of a layer": "b = Relu (h) c = Sub (one, b) l = Div (g0, c)",
    "a scaled rest": "b = Mul (half, h) c = Sub (one, b) l = Div (g0, c)",
    "a bounded logit": """t = Sigmoid (h) b = Clip (t, tiny) c = Sub (one, t) d = Max (c, tiny)
        q = Div (b, d) l = Log (q)""",
    "a softplus": """k = Abs (h) m = Neg (k) t = Exp (m) c = Add (t, one) q = Log (c) r = Relu (h)
        l = Add (r, q)""",
    "a whole power": "t = Sigmoid (h) c = Sub (one, t) l = Mul (c, h)",
    "a logarithm of another sum": "b = Relu (h) c = Add (b, two) l = Log (c)",
}


def _network(way: str) -> str:
    """Layers before and behind a way."""
    return f"""g (float[64,64] x, int64[64] step) => (float[64,64] y)
    <float[64,64] w, float[64,64] v, float[64,64] u, float[1000,1] table, float one = {{1}},
    float two = {{2}}, float half = {{0.5}}, float tiny = {{0.0001}}, float minus = {{-0.5}},
    float high = {{0.99999}}> {{
        h = MatMul (x, w) g0 = MatMul (x, u)
        {way}
        y = MatMul (l, v) }}"""


@pytest.mark.parametrize("options", [None, Options(half=BFLOAT16)])
@pytest.mark.parametrize("way", WAYS)
def test_what_counts_near_1_stays(way: str, options: Options | None):
    """From what makes it, or is added to 1, up to what tells how far it is; the layers around are half."""
    text = _network(WAYS[way])
    half = in_half(text, options)
    assert {"h", "y"} <= half
    assert not half & {"t", "b", "n", "c", "d", "r"}
    assert kept(text, options)["c"] == REASON


@pytest.mark.parametrize("way", OTHERS)
def test_other_numbers_near_1_are_half(way: str):
    """A factor near zero adds little to a sum; half a number is, its rest is exact."""
    text = _network(OTHERS[way])
    assert kept(text) == {}
    assert {"h", "c", "l", "y"} <= in_half(text)


def _numbers(largest: float) -> np.ndarray:
    """Numbers that half holds exactly, up to this one."""
    return np.linspace(-largest, largest, 4096).astype(np.float16).astype(np.float32).reshape(64, 64)


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", [way for way in WAYS if way != "a root of a bounded rest"])
def test_digits_near_1_are_not_lost(way: str):
    """Logarithms, roots and quotients of what is near 1 have half's own error and no more."""
    one = np.eye(64, dtype=np.float32)
    table = 1 - np.linspace(1e-4, 2e-2, 1000, dtype=np.float32).reshape(1000, 1)
    proto = model(_network(WAYS[way]), {"w": one, "v": one, "u": one, "table": table})
    feeds = {"x": _numbers(LARGE.get(way, 4)), "step": np.arange(64)}
    verdict = verify(proto, rewritten(proto).model, feeds, device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < 2e-3
