"""Logarithms of spectra of inputs stay float32 from the input on; those of what a network computes do not."""

import numpy as np
import pytest

from amp_rewrite import rewrite, verify
from amp_rewrite.policy.options import IOTypes, Options
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = (
    "it makes the logarithm of a spectrum of inputs of the model, and half would lose what is faint there"
)
POWER = "rr = Mul (re, re) ii = Mul (im, im) p = Add (rr, ii)"
WAYS = {
    "mel features": f"{POWER} m = MatMul (p, mel) c = Clip (m, faint)",
    "magnitudes": f"{POWER} g = Sqrt (p) m = MatMul (g, mel) c = Add (m, faint)",
    "energies": "p = ReduceSumSquare <axes = [2]> (s) c = Max (p, faint)",
}
OTHERS = {
    "a floor above what half rounds": f"{POWER} m = MatMul (p, mel) c = Add (m, one)",
    "no spectrum": "h = MatMul (s, v) t = Tanh (h) q = Mul (t, t) m = MatMul (q, w) c = Add (m, faint)",
    "no power": "h = MatMul (s, v) c = Max (h, faint)",
}


def _network(way: str, given: str = "float[1,T,16] x", first: str = "") -> str:
    """A transform of frames of 16 numbers, a way to a logarithm, and a network behind it."""
    return f"""g ({given}) => (float[1,T,k] y) <float[16,16] d, float[8,16] mel, float[16,16] v,
        float[16,16] w, float faint = {{1e-10}}, float one = {{1}}, int64[2] parts = {{8, 8}},
        float[1,4] u> {{
        {first}
        s = MatMul (x, d) re, im = Split <axis = 2> (s, parts)
        {way}
        l = Log (c) a = ReduceMean <axes = [2]> (l) b = MatMul (a, u) y = Relu (b) }}"""


@pytest.mark.parametrize("way", WAYS)
def test_what_makes_the_logarithm_of_a_spectrum_stays(way: str):
    """All is float32 from the input to the logarithm, and the network behind it is half."""
    text = _network(WAYS[way])
    found = kept(text)
    assert {"s", "p"} <= {name for name, reason in found.items() if reason == REASON}
    half = in_half(text)
    assert "b" in half
    assert not half & {"s", "re", "p", "m", "c", "l"}


@pytest.mark.parametrize("way", OTHERS)
def test_other_logarithms_are_half(way: str):
    """Where faint numbers do not show, or a network computes them, the products are half."""
    text = _network(OTHERS[way])
    assert REASON not in kept(text).values()
    assert {"s", "m" if "m =" in OTHERS[way] else "h"} <= in_half(text)


def test_a_floor_of_a_clip_that_is_taken_apart_is_seen():
    """Before opset 11 the bounds of a Clip are attributes, and it becomes a Max and a Min."""
    text = """<ir_version: 4, opset_import: ["": 9]> g (float[1,T,16] x) => (float[1,T,8] l)
        <float[16,16] d, float[16,8] mel> {
        s = MatMul (x, d) p = Mul (s, s) m = MatMul (p, mel)
        c = Clip <min = MIN, max = 1e4> (m) l = Log (c) }"""
    assert REASON not in kept(text.replace("MIN", "1.0")).values()
    assert REASON in kept(text.replace("MIN", "1e-10")).values()


def test_audio_of_integers_is_an_input_too():
    """16-bit audio is cast before anything else."""
    text = _network(WAYS["energies"], "int16[1,T,16] pcm", "x = Cast <to = 1> (pcm)")
    assert {"s", "p"} <= {name for name, reason in kept(text).items() if reason == REASON}


def test_an_input_that_was_made_half_is_an_input_still():
    """With half inputs and outputs, a second rewrite changes nothing, not one byte."""
    options = Options(io=IOTypes.HALF)
    once = rewrite(model(_network(WAYS["energies"])), options).model
    assert rewrite(once, options).model == once


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("loud", [1e-4, 1e4])
def test_quiet_and_loud_audio_is_close(loud: float):
    """Powers of 1e-8, and of 1e8, have their logarithms."""
    behind = np.full((1, 4), -0.5 if loud < 1 else 0.5, np.float32)  # what Relu gets is above 0
    weights = {"mel": np.full((8, 16), 0.01, np.float32), "u": behind}
    proto = model(_network(WAYS["mel features"]), weights)
    feeds = {"x": loud * np.random.default_rng(0).normal(size=(1, 50, 16)).astype(np.float32)}
    assert verify(proto, rewritten(proto).model, feeds).error < 5e-3
