"""What is left of inputs that are taken from each other is not rounded; differences of features are half."""

import numpy as np
import pytest

from amp_rewrite import verify
from amp_rewrite.analysis import differences
from amp_rewrite.model.constants import numbers
from tests.text import RUNS, in_half, kept, model, rewritten

REASON = "it takes inputs of the model from each other, and half would round away what is left"
WAYS = {
    "the last value": "l = Slice (x, end, stop, axis) d = Sub (x, l)",
    "a moving average": """p = Pad <mode = "edge"> (x, pads)
        m = AveragePool <kernel_shape = [9]> (p) d = Sub (x, m)""",
    "steps": "b = Slice (p0, zero, end, axis) a = Slice (p0, one, stop, axis) d = Sub (a, b)",
    "points of a graph": """a = Gather <axis = 2> (x, sources) b = Gather <axis = 2> (x, targets)
        d = Sub (a, b)""",
    "another input": "d = Sub (x, x2)",
    "a mean by a product": "m = MatMul (x, ones) d = Sub (x, m)",
    "a mean by a product with what is moved": """t = Transpose <perm = [0, 2, 1]> (x) n = MatMul (ones, t)
        m = Transpose <perm = [0, 2, 1]> (n) d = Sub (x, m)""",
    "a mean in one product": "d = MatMul (x, centring)",
}
MOVED = {
    "the last value": "l",
    "a moving average": "p",
    "steps": "b",
    "points of a graph": "b",
    "a mean by a product": "m",
    "a mean in one product": "",
}
"""What a way moves of its inputs, which other layers may read as well."""
WEIGHTS = {
    "ones": np.full((64, 64), 1 / 64, np.float32),
    "centring": (np.eye(64) - 1 / 64).astype(np.float32),
}
OTHERS = {
    "of features": "u = MatMul (x, w) v0 = MatMul (x, w2) d = Sub (u, v0)",
    "of a feature and an input": "u = MatMul (x, w) d = Sub (u, x)",
    "of a product": "u = MatMul (x, w) v0 = MatMul (u, ones) d = Sub (u, v0)",
    "of a layer that takes away": "u = MatMul (x, w) d = MatMul (u, centring)",
    "of a scaled input": "u = Tanh (x) v0 = MatMul (x, w) d = Sub (u, v0)",
}


def _network(way: str, moved: str = "") -> str:
    """Layers behind what a way makes of 8 series of 64 values, gated by a layer of what is moved."""
    layers = "m1 = MatMul (d, first) r = Relu (m1)"
    if moved:
        layers += f" k = ReduceMax <axes = [2]> ({moved}) g0 = MatMul (k, gate) g1 = Sigmoid (g0)"
    last = "Mul (r, g1)" if moved else "Identity (r)"
    return f"""g (float[1,8,64] x, float[1,8,64] x2, float[1,8,65] p0) => (float[1,8,16] y)
    <float[64,64] w, float[64,64] w2, float[64,32] first, float[32,16] second, float[1,32] gate,
    int64[1] axis = {{2}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] end = {{-1}},
    float[64,64] ones, float[64,64] centring, int64[1] stop = {{100}},
    int64[6] pads = {{0, 0, 4, 0, 0, 4}}, int64[64] sources, int64[64] targets> {{
        {way} {layers} h = {last} y = MatMul (h, second) }}"""


@pytest.mark.parametrize("way", WAYS)
def test_a_difference_of_inputs_stays(way: str):
    """It is float32, with what moves or averages the inputs for it; the layers behind are half."""
    found = kept(_network(WAYS[way]), weights=WEIGHTS)
    assert "d" in found
    assert set(found.values()) == {REASON}
    half = in_half(_network(WAYS[way]), weights=WEIGHTS)
    assert {"m1", "r", "y"} <= half
    assert not half & found.keys()


@pytest.mark.parametrize("way", OTHERS)
def test_a_difference_of_features_is_half(way: str):
    """What a layer or an activation makes is no input any more."""
    assert kept(_network(OTHERS[way]), weights=WEIGHTS) == {}
    assert "d" in in_half(_network(OTHERS[way]), weights=WEIGHTS)


@pytest.mark.parametrize(("kind", "stays"), [("int16", True), ("uint8", False), ("bool", False)])
def test_inputs_that_are_cast_are_inputs_unless_half_holds_them(kind: str, *, stays: bool):
    """Of 16-bit audio half rounds numbers; of an image of bytes, or of a mask, none."""
    text = f"""g ({kind}[8,64] a, {kind}[8,64] b) => (float[8,32] y) <float[64,32] w> {{
        u = Cast <to = 1> (a) v = Cast <to = 1> (b) d = Sub (u, v) y = MatMul (d, w) }}"""
    assert ("d" in kept(text)) is stays


def test_a_stored_mean_that_is_an_input_as_well_is_none():
    """A number that the model stores is no input to take away, though old models list it as one."""
    text = """<ir_version: 3, opset_import: ["" : 17]>
    g (float[1,64] x, float[1,64] mean, float[64,64] w) => (float[1,64] y) <
        float[1,64] mean, float[64,64] w> { d = Sub (x, mean) y = MatMul (d, w) }"""
    assert kept(text) == {}


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", MOVED)
def test_a_large_offset_is_taken_away(way: str):
    """Series of 1000 and a little, of which half would have steps of 1/2, keep what varies, though another
    layer reads in half what is moved of them.
    """
    source = np.random.default_rng(0)
    at = {name: source.integers(0, 64, 64) for name in ("sources", "targets")}
    sides = {"first": (64, 32), "second": (32, 16), "gate": (1, 32)}
    layers = {
        name: source.normal(0, 0.1 if name != "gate" else 1e-3, size).astype(np.float32)
        for name, size in sides.items()
    }
    proto = model(_network(WAYS[way], MOVED[way]), {**at, **layers, **WEIGHTS})
    sizes = {"x": (1, 8, 64), "x2": (1, 8, 64), "p0": (1, 8, 65)}
    feeds = {name: (1000 + source.normal(0, 1, size)).astype(np.float32) for name, size in sizes.items()}
    verdict = verify(proto, rewritten(proto).model, feeds, device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < 2e-3


def test_a_matrix_that_layers_share_is_summed_once(monkeypatch: pytest.MonkeyPatch):
    """A matrix of 64 MB took 0.1 seconds for each layer that reads it."""
    seen: list[object] = []
    monkeypatch.setattr(differences, "numbers", lambda tensor: (seen.append(tensor), numbers(tensor))[1])
    layers = "\n".join(f"a{at + 1} = MatMul (a{at}, ones)" for at in range(9))
    network = f"""g (float[8,64] a0) => (float[8,64] y) <float[64,64] ones> {{
        {layers}
        y = Sub (a0, a9) }}"""
    assert kept(network, weights=WEIGHTS)["y"] == REASON
    assert len(seen) == 1
