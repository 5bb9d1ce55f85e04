"""A bound near 1 that half rounds to 1 keeps its way to a division by what is left in float32."""

import numpy as np
import pytest

from amp_rewrite import verify
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import Options
from tests.text import RUNS, in_half, kept, model, rewritten

WAYS = {
    "a logit": "c = Clip (s, low, high) r = Sub (one, c) q = Div (c, r) l = Log (q)",
    "an atanh": "c = Min (s, high) p = Add (c, one) r = Sub (one, c) q = Div (p, r) l = Log (q)",
    "an inverse": "c = Min (high, s) m = Neg (c) r = Add (m, one) q = Reciprocal (r) l = Log (q)",
}


def _network(way: str, high: float = 0.99999, data: str = "s = Sigmoid (h)") -> str:
    """Something between 0 and 1, a way to a division, and a layer behind it."""
    return f"""g (float[N,64] x) => (float[N,64] y) <float[64,64] w, float[64,64] v, float low = {{1e-5}},
        float high = {{{high}}}, float one = {{1}}> {{ h = MatMul (x, w) {data} {way} y = MatMul (l, v) }}"""


@pytest.mark.parametrize("way", WAYS)
def test_what_a_bound_keeps_from_zero_stays(way: str):
    """All from the sigmoid to the division and its logarithm is float32, and the layers are half."""
    text = _network(WAYS[way])
    reason = "0.99999 in 'high' becomes 1 in float16, and what it leaves of 1 is divided by"
    assert {"c", "r"} <= {name for name, told in kept(text).items() if told == reason}
    half = in_half(text)
    assert {"h", "y"} <= half
    assert not half & {"s", "c", "p", "r", "q", "l"}


@pytest.mark.parametrize(("high", "stays"), [(0.9998, True), (0.9997, False)])
def test_a_bound_that_half_tells_from_1_is_no_reason(high: float, stays: bool):
    """Half has no number between 1 - 2^-11 and 1."""
    assert ("r" in kept(_network(WAYS["a logit"], high))) == stays


def test_bfloat16_has_fewer_numbers_near_1():
    """There, 0.999 is 1."""
    text = _network(WAYS["a logit"], 0.999)
    assert kept(text) == {}
    assert "r" in kept(text, Options(half=BFLOAT16))


def test_a_rest_that_is_not_divided_by_is_half():
    """A weight of an average is no divisor."""
    text = _network("c = Min (s, high) r = Sub (one, c) l = Mul (r, h)")
    assert kept(text) == {}


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
def test_a_logit_of_probabilities_is_finite_and_close():
    """Probabilities of 1, which are an input, have the logarithm of the bound in the result as well."""
    proto = model(_network(WAYS["a logit"], data="s = Sigmoid (x)"))
    feeds = {"x": np.random.default_rng(0).normal(0, 10, (16, 64)).astype(np.float32)}
    verdict = verify(proto, rewritten(proto).model, feeds)
    assert verdict.ok, verdict.faults
