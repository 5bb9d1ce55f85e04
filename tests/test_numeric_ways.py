"""What needs its digits is float32 however it is written, and nothing else is (tests/numeric_ways.py)."""

import itertools

import numpy as np
import onnx
import pytest

from amp_rewrite import analyze, verify
from amp_rewrite.analysis import forms
from amp_rewrite.model.constants import numbers
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import Options
from tests import neutral
from tests.numeric_ways import FAMILIES
from tests.text import RUNS, in_half, kept, model, rewritten

WAYS = [(family, way) for family, each in FAMILIES.items() for way in each.ways]
OTHERS = [(family, other) for family, each in FAMILIES.items() for other in each.others]
TRIED = [(name, way) for name, way in WAYS if (tried := FAMILIES[name].tried) is None or way in tried]
BESIDE = {"a floor above what half rounds", "no spectrum", "no power"}
"""Others in which another reason than that of the family holds something."""


def _are_in(names: str, text: str) -> set[str]:
    """Those of these names that a text gives to outputs."""
    return {name for name in names.split() if f" {name} = " in f" {text}" or f" {name}, " in f" {text}"}


@pytest.mark.parametrize("options", [None, Options(half=BFLOAT16)], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(("family", "way"), WAYS)
def test_what_needs_its_digits_stays(family: str, way: str, options: Options | None):
    """From where digits would be lost to where they count all is float32; the layers around are half."""
    each, text = FAMILIES[family], FAMILIES[family].text(way)
    half = in_half(text, options, weights=each.weights)
    assert not half & _are_in(each.full, each.ways[way])
    if options is None:
        assert _are_in(each.held, each.ways[way]) <= kept(text, weights=each.weights).keys()
        assert set(each.half.split()) <= half


@pytest.mark.parametrize(("family", "other"), OTHERS)
def test_what_does_not_is_half(family: str, other: str):
    """Where nothing much smaller is left, or nobody needs it, no number is a reason."""
    each, text = FAMILIES[family], FAMILIES[family].text(other)
    if other not in BESIDE:
        assert kept(text, weights=each.weights) == {}
        assert _are_in(each.free, text) <= in_half(text, weights=each.weights) | _denied(text)


def _denied(text: str) -> set[str]:
    """What is float32 by a list, and what follows."""
    entries = analyze(model(text)).painting.entries
    units = analyze(model(text)).graph.units
    return {str(u.node.outputs[0].name) for u in units if entries[u.index].authority is Authority.LIST}


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize(("family", "way"), TRIED)
def test_no_digits_are_lost(family: str, way: str):
    """Rewritten without a run, it has half's own error and no more."""
    each = FAMILIES[family]
    weights, feeds = each.data(way)
    proto = model(each.text(way), {**each.weights, **weights})
    verdict = verify(proto, rewritten(proto).model, dict(feeds), device="cpu")
    assert verdict.ok, verdict.faults
    assert verdict.error < each.close


@pytest.mark.parametrize(("kind", "stays"), [("int16", True), ("uint8", False), ("bool", False)])
def test_inputs_that_are_cast_are_inputs_unless_half_holds_them(kind: str, *, stays: bool):
    """Of 16-bit audio half rounds numbers; of an image of bytes, or of a mask, none."""
    text = f"""g ({kind}[8,64] a, {kind}[8,64] b) => (float[8,32] y) <float[64,32] w> {{
        u = Cast <to = 1> (a) v = Cast <to = 1> (b) d = Sub (u, v) y = MatMul (d, w) }}"""
    assert ("d" in kept(text)) is stays


HALF = {
    "a stored mean that is an input as well": """<ir_version: 3, opset_import: ["" : 17]>
        g (float[1,64] x, float[1,64] mean, float[64,64] w) => (float[1,64] y) <
        float[1,64] mean, float[64,64] w> { d = Sub (x, mean) y = MatMul (d, w) }""",
    "a target in a gradient": """g (float[4,64] x, float[4,64] t, float[4,64] m) => (float[4,64] n) <
        float[64,64] w, float[64,64] v, float b = {0.9}, float c = {0.1}> {
        h = MatMul (x, w) d = Sub (h, t) s = Mul (c, d) o = Mul (b, m) p = Add (o, s) n = MatMul (p, v) }""",
}


@pytest.mark.parametrize("text", HALF.values(), ids=list(HALF))
def test_a_number_that_may_differ_is_no_reason(text: str):
    """What two inputs have in common counts where nothing else is in the sum."""
    assert kept(text) == {}


def test_values_are_followed_into_bodies_and_out_of_them():
    """A mean that a branch takes from a mean of squares, and a rest that leaves a branch for a logarithm."""
    text = """g (float[4, 64] x, bool c) => (float[4, 64] y)
        <float[64, 64] w, float[64, 64] v, float one = {1}> {
        a = MatMul (x, w) q = Mul (a, a) s = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]> (a)
        o = If (c) <then_branch = t () => (float[4, 1] d) { r = Mul (m, m) d = Sub (s, r) },
            else_branch = e () => (float[4, 1] f) { p = Tanh (m) u = Mul (p, p) f = Sub (one, u) }>
        l = Log (o) k = Mul (a, l) y = MatMul (k, v) }"""
    found = kept(text)
    assert {"s", "m", "r", "d", "p", "u", "f", "l"} <= found.keys()
    assert {"a", "y"} <= in_half(text)


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
def test_a_variance_in_a_window_is_close():
    """That of SSIM, whose averages are those of a Conv; the layer before is half."""
    text = """g (float[1,1,32,32] x) => (float[1,1,24,24] y)
        <float[1,1,5,5] w, float[1,1,5,5] k, float c = {0.0009}> {
        h = Conv (x, k) q = Mul (h, h) s = Conv (q, w) m = Conv (h, w) r = Mul (m, m) d = Sub (s, r)
        y = Add (d, c) }"""
    weights = {name: np.full((1, 1, 5, 5), 0.04, np.float32) for name in "wk"}
    assert {"q", "s", "m", "r", "d"} <= kept(text, weights=weights).keys()
    proto = model(text, weights)
    feeds = {"x": 0.6 + 0.05 * np.random.default_rng(0).random((1, 1, 32, 32), np.float32)}
    assert verify(proto, rewritten(proto).model, feeds).error < 1e-2


def test_a_matrix_that_layers_share_is_summed_once(monkeypatch: pytest.MonkeyPatch):
    """A matrix of 64 MB took 0.1 seconds for each layer that reads it."""
    seen: list[object] = []
    monkeypatch.setattr(forms, "numbers", lambda tensor: (seen.append(tensor), numbers(tensor))[1])
    layers = " ".join(f"a{at + 1} = MatMul (a{at}, ones)" for at in range(9))
    network = f"g (float[8,64] a0) => (float[8,64] y) <float[64,64] ones> {{ {layers} y = Sub (a0, a9) }}"
    assert "y" in kept(network, weights=FAMILIES["differences"].weights)
    assert len(seen) == 1


def test_ways_that_meet_again_are_one():
    """A node that reads a value over and over has one way to it: these would be 40 to the power of 5."""
    chosen = " ".join(f"m{at + 1} = Max ({', '.join([f'm{at}'] * 40)})" for at in range(5))
    text = f"""g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> {{
        h = MatMul (x, w) m0 = Sigmoid (h) {chosen} l = Log (m5) y = MatMul (l, w) }}"""
    assert kept(text).keys() == {"m0", "m1", "m2", "m3", "m4", "m5", "l"}


def _lost(proto: onnx.ModelProto, copy: onnx.ModelProto) -> set[str]:
    """The nodes that a reason of numbers holds in a model and that are half in a copy."""
    found = analyze(proto)
    held = {
        str(unit.node.outputs[0].name)
        for unit in found.graph.units
        if found.painting.entries[unit.index].authority is Authority.RANGE
    }
    other = analyze(copy)
    half = {str(u.node.outputs[0].name) for u in other.graph.units if other.painting.is_half(u.index)}
    return held & half


def _law(family: str, step: int) -> tuple[int, list[str]]:
    """The number of copies of a family's ways, every one of `step`, and those that lose a node."""
    each, tried, lost = FAMILIES[family], 0, list[str]()
    for way in each.ways:
        proto = model(each.text(way), each.weights)
        for name, copy in itertools.islice(neutral.copies(proto), hash_of(way) % step, None, step):
            tried += 1
            lost += [f"{way}: {name}"] if _lost(proto, copy) else []
    return tried, lost


def hash_of(text: str) -> int:
    """A number that is the same in every run."""
    return sum(map(ord, text))


LAWFUL = [
    name
    for name in FAMILIES
    if name not in ("moving averages", "running sums", "gaussians", "angles", "spectra")
]


@pytest.mark.parametrize("family", LAWFUL)
def test_a_neutral_movement_changes_no_decision(family: str):
    """A Reshape, Transpose, Slice, Identity, Squeeze or Dropout between two nodes loses no node to half."""
    _, lost = _law(family, 23)
    assert lost == []


@pytest.mark.slow
@pytest.mark.parametrize("family", LAWFUL)
def test_hardly_any_neutral_movement_changes_a_decision(family: str):
    """Of all such copies, at most 2 % lose a node."""
    tried, lost = _law(family, 1)
    assert len(lost) <= tried * 0.02, lost
