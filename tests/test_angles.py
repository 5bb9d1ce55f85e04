"""Angles that inputs of the model make stay float32 up to their sines; those of features are half."""

import numpy as np
import pytest

from amp_rewrite import verify
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "it makes the angle of a Sin or Cos from inputs of the model, and half would round that"
WAYS = {
    "frequencies": "a = MatMul (x, f)",
    "with a bias": "a = Gemm (x, f, b)",
    "scaled": "u = Mul (x, two) o = Sub (u, two) m = MatMul (o, f) a = Mul (m, two)",
    "of a time": "c = Constant <value_ints = [0]> () t = Gather <axis = 1> (x, c) a = Mul (t, b)",
}


def _features(way: str) -> str:
    """Sines and cosines of what a way makes of three coordinates, and a layer on them."""
    return f"""g (float[N,3] x) => (float[N,64] y)
    <float[3,64] f, float[64] b, float[128,64] w, float[64,64] v, float two = {{2.0}}> {{
        {WAYS[way]}
        s = Sin (a)
        c1 = Cos (a)
        k = Concat <axis = 1> (s, c1)
        m1 = MatMul (k, w)
        r = Relu (m1)
        y = MatMul (r, v)
    }}"""


@pytest.mark.parametrize("way", WAYS)
def test_angles_of_coordinates_stay(way: str):
    """Coordinates are multiplied by frequencies in float32, up to the sines; the layers behind are half."""
    text = _features(way)
    found = kept(text)
    assert {"a", "s", "c1"} <= found.keys()
    assert set(found.values()) == {REASON}
    assert {"m1", "r", "y"} <= in_half(text)


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
def test_large_angles_are_close_without_a_search():
    """Angles of about 100, which half holds in steps of 1/16, are no trouble."""
    source = np.random.default_rng(0)
    proto = model(_features("frequencies"), {"f": source.normal(0, 60, (3, 64)).astype(np.float32)})
    result = rewritten(proto)
    feeds = {"x": source.random((32, 3), np.float32)}
    assert verify(proto, result.model, feeds).error < 2e-3


def test_a_sine_as_activation_is_half():
    """A layer on features is half, with a sine behind it as well."""
    text = """g (float[N,3] x) => (float[N,64] y) <float[3,64] f, float[64,64] w, float[64,64] v> {
        m = MatMul (x, f)
        a = Sin (m)
        n = MatMul (a, w)
        b = Sin (n)
        y = MatMul (b, v)
    }"""
    assert kept(text).keys() == {"m", "a"}
    assert {"n", "b", "y"} <= in_half(text)


def test_a_wide_product_of_an_input_is_a_layer():
    """What multiplies an input of more than three elements makes features, not angles."""
    text = """g (float[N,8] x) => (float[N,64] y) <float[8,64] w, float[64,64] v> {
        m = MatMul (x, w)
        a = Sin (m)
        y = MatMul (a, v)
    }"""
    assert kept(text) == {}
    assert {"m", "a", "y"} <= in_half(text)


def test_what_features_take_part_in_is_no_angle():
    """An input that is multiplied by features makes features: nothing is held."""
    text = """g (float[N,64] x) => (float[N,64] y) <float[64,64] w, float[64,64] v> {
        m = MatMul (x, w)
        a = Mul (x, m)
        s = Sin (a)
        y = MatMul (s, v)
    }"""
    assert kept(text) == {}
    assert {"m", "a", "s", "y"} <= in_half(text)
