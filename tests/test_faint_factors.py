"""Factors of which half keeps few steps or none stay float32 where what they make is multiplied up."""

import numpy as np
import pytest

from amp_rewrite import Options, analyze, pipeline, verify
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.policy.reasons import in_words
from tests import text

WAYS = {
    "a product": ("a = MatMul (x, w) b = Mul (a, big) y = MatMul (b, v)", "ab"),
    "a quotient": ("a = MatMul (x, w) b = Div (a, small) y = MatMul (b, v)", "ab"),
    "moved between": (
        "a = MatMul (x, w) c = Relu (a) d = Transpose (c) b = Mul (big, d) y = MatMul (b, v)",
        "acdb",
    ),
    "a bias as small": ("a = MatMul (x, w) c = Add (a, t) b = Mul (c, bigs) y = MatMul (b, v)", "acb"),
    "a Gemm": ("a = Gemm (x, w, t) b = Mul (a, big) y = MatMul (b, v)", "ab"),
    "its alpha": ("a = Gemm <alpha = 1000000.0> (x, w) y = MatMul (a, v)", "a"),
    "two steps": ("a = MatMul (x, w) c = Mul (a, some) b = Mul (c, some) y = MatMul (b, v)", "acb"),
    "a product with large weights": ("a = MatMul (x, w) b = MatMul (a, large) y = MatMul (b, v)", "ab"),
    "a norm": ("a = MatMul (x, w) b = LayerNormalization <epsilon = 1e-12> (a, one) y = MatMul (b, v)", "ab"),
    "a vector": ("a = Mul (x, t) b = Mul (a, big) y = MatMul (b, v)", "ab"),
}
OTHERS = {
    "nothing behind": "y = MatMul (x, w)",
    "layers behind": "a = MatMul (x, w) b = MatMul (a, v) y = MatMul (b, v)",
    "added to something larger": "a = MatMul (x, w) c = MatMul (x, v) b = Add (a, c) y = Mul (b, some)",
    "a bias that is larger": "a = Gemm (x, w, one) y = Mul (a, some)",
    "a bias": "a = Gemm (x, v, t) y = Mul (a, some)",
    "a small factor behind": "a = MatMul (x, w) b = Mul (a, ten) y = MatMul (b, v)",
}


def network(body, size):
    """A model with weights and a vector of this size."""
    draw = np.random.default_rng(0)
    weights = {
        "w": (draw.standard_normal((16, 16)) * size).astype(np.float32),
        "t": (draw.standard_normal(16) * size).astype(np.float32),
        "v": draw.standard_normal((16, 16)).astype(np.float32) / 4,
        "large": draw.standard_normal((16, 16)).astype(np.float32) * 1e4,
        "one": np.ones(16, np.float32),
        "bigs": np.full(16, 1e6, np.float32),
    }
    return text.model(
        f"""g (float[16,16] x) => (float[16,16] y) <float[16,16] w, float[16] t, float[16,16] v,
        float[16,16] large, float[16] one, float[16] bigs, float big = {{1e6}}, float small = {{1e-6}},
        float some = {{1e4}}, float ten = {{10}}> {{ {body} }}""",
        weights,
    )


def held(model, **asked):
    """What faint factors hold in float32, in words, by the value that is made there."""
    found = analyze(model, Options(**asked))
    kept = {unit: why for unit, why in found.findings.items() if why.reason is Reason.FAINT_FACTOR}
    return {value.name: in_words(why) for unit, why in kept.items() for value in found.graph.units[unit].defs}


@pytest.mark.parametrize("size", [1.6e-7, 1e-8])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_multiplied_up_stays(way, size):
    """From the factor to where what it makes is no longer small; and the result is close."""
    body, names = WAYS[way]
    model = network(body, size)
    found = analyze(model)
    full = {
        value.name
        for unit in found.graph.units
        for value in unit.defs
        if not found.painting.is_half(unit.index)
    }
    assert full == set(names)
    if text.RUNS:
        feeds = {"x": np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)}
        assert verify(model, pipeline.rewrite(model).model, feeds).error < 1e-3


@pytest.mark.parametrize("way", OTHERS)
def test_other_small_factors_do_no_harm(way):
    """What stays small, or is added to something larger, is half."""
    assert held(network(OTHERS[way], 1e-8)) == {}


@pytest.mark.parametrize("way", WAYS)
def test_factors_that_half_holds_are_half(way):
    """Those of ordinary layers, and any of them in bfloat16, whose range is float32's."""
    body, _ = WAYS[way]
    assert held(network(body, 1e-2)) == {}
    assert held(network(body, 1.6e-7), half="bfloat16") == {}


def test_the_reason_has_the_numbers():
    """The largest of the factor, and half's steps there."""
    found = held(network(WAYS["two steps"][0], 1e-8))
    said = (
        "'w' has numbers up to 3.1e-08, where float16 has steps of 6e-08, and what they make is multiplied up"
    )
    assert found == dict.fromkeys("ac", said)
