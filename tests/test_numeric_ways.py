"""What needs its digits is float32 however it is written, and nothing else is (tests/numeric_ways.py)."""

import itertools

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from amp_rewrite import analyze, emulate, rewrite, verify
from amp_rewrite.analysis import forms
from amp_rewrite.model.constants import numbers
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import IOTypes, Options
from tests import neutral
from tests.numeric_ways import FAMILIES, Arrays
from tests.text import RUNS, in_half, kept, model, rewritten

WAYS = [(family, way) for family, each in FAMILIES.items() for way in each.ways]
OTHERS = [(family, other) for family, each in FAMILIES.items() for other in each.others]
TRIED = [(name, way) for name, way in WAYS if (tried := FAMILIES[name].tried) is None or way in tried]
BESIDE = {"a floor above what half rounds", "no spectrum", "no power"}
"""Others in which another reason than that of the family holds something."""


def _are_in(names: str, text: str) -> set[str]:
    """Those of these names that a text gives to outputs."""
    return {name for name in names.split() if f" {name} = " in f" {text}" or f" {name}, " in f" {text}"}


_CANCELLATION = "its terms may be much larger than their sum, and half would round off what is left"
_NEAR = "how far from 0 or 1 something is counts here, and half would round that away"
_ACCUMULATED = "it is added up step by step, and half would round it in every step"
REASONS = {
    **dict.fromkeys(("variances", "distances", "displacements", "differences"), _CANCELLATION),
    **dict.fromkeys(("near one", "small rests", "logarithms"), _NEAR),
    **dict.fromkeys(("moving averages", "running sums"), _ACCUMULATED),
    "gaussians": "distance to a grid inside a Gaussian: half would lose the sub-pixel part",
    "spectra": "logarithm of a spectrum of inputs of the model: half would lose what is faint",
    "angles": "angle of a Sin or Cos from inputs of the model: half would lose fractions of a turn",
}
"""What a user reads of the nodes that a family holds."""


@pytest.mark.parametrize("options", [None, Options(half=BFLOAT16)], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(("family", "way"), WAYS)
def test_what_needs_its_digits_stays(family: str, way: str, options: Options | None):
    """From where digits would be lost to where they count all is float32; the layers around are half."""
    each, text = FAMILIES[family], FAMILIES[family].text(way)
    half = in_half(text, options, weights=each.weights)
    assert not half & _are_in(each.full, each.ways[way])
    if options is None:
        reasons = kept(text, weights=each.weights)
        assert {reasons.get(name) for name in _are_in(each.held, each.ways[way])} <= {REASONS[family]}
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
    "a sum of layers with a state": """g (float[4,64] x, float[4,64] s) => (float[4,64] y)
        <float[64,64] w, float[64,64] v, float[64,64] u> {
        h = MatMul (x, w) g0 = MatMul (s, v) a = Add (h, g0) y = MatMul (a, u) }""",
    "a wide product of an input, as an angle": """g (float[N,8] x) => (float[N,64] y)
        <float[8,64] w, float[64,64] v> { m = MatMul (x, w) a = Sin (m) y = MatMul (a, v) }""",
    "an input and features, as an angle": """g (float[N,64] x) => (float[N,64] y)
        <float[64,64] w, float[64,64] v> {
        m = MatMul (x, w) a = Mul (x, m) s = Sin (a) y = MatMul (s, v) }""",
    "a cell of an LSTM": """g (float[T,64] x, float[64] h0, float[64] c0) => (float[64] y, float[64] z)
        <float[64,64] u> { y, z = Scan <num_scan_inputs = 1, body = b (float[64] h, float[64] c, float[64] i)
            => (float[64] k, float[64] d) { v = MatMul (h, u) w = Add (v, i) f = Sigmoid (w)
            m = Mul (c, f) g = Tanh (i) d = Add (m, g) k = Tanh (d) }> (h0, c0, x) }""",
    "a target in a gradient": """g (float[4,64] x, float[4,64] t, float[4,64] m) => (float[4,64] n) <
        float[64,64] w, float[64,64] v, float b = {0.9}, float c = {0.1}> {
        h = MatMul (x, w) d = Sub (h, t) s = Mul (c, d) o = Mul (b, m) p = Add (o, s) n = MatMul (p, v) }""",
}


@pytest.mark.parametrize("text", HALF.values(), ids=list(HALF))
def test_a_number_that_may_differ_is_no_reason(text: str):
    """What two inputs have in common counts where nothing else is in the sum."""
    assert kept(text) == {}


@pytest.mark.parametrize(
    ("high", "options", "stays"),
    [
        (0.9998, None, True),
        (0.9997, None, False),
        (0.999, None, False),
        (0.999, Options(half=BFLOAT16), True),
    ],
)
def test_a_bound_that_half_tells_from_1_bounds(high: float, options: Options | None, *, stays: bool):
    """float16 has no number between 1 - 2^-11 and 1, and bfloat16 has fewer there."""
    text = FAMILIES["near one"].text("a logit of what is bounded")
    assert ("r" in kept(text.replace("{0.99999}", f"{{{high}}}"), options)) is stays


def test_a_sine_of_coordinates_holds_no_layer_behind_it():
    """A sine as an activation is half, unless it is that of a point."""
    text = """g (float[N,3] x) => (float[N,64] y) <float[3,64] f, float[64,64] w, float[64,64] v> {
        m = MatMul (x, f) a = Sin (m) n = MatMul (a, w) b = Sin (n) y = MatMul (b, v) }"""
    assert kept(text).keys() == {"m", "a"}
    assert {"n", "b", "y"} <= in_half(text)


@pytest.mark.parametrize(("options", "stays"), [(None, False), (Options(half=BFLOAT16), True)])
def test_a_step_counts_beside_what_half_rounds(options: Options | None, *, stays: bool):
    """A step of a tenth is much larger than what float16 rounds, but not than what bfloat16 does."""
    text = FAMILIES["moving averages"].network
    text = text.replace("WAY", "d = Sub (h, s) b = Mul (d, tenth) n = Add (s, b)")
    assert ("n" in kept(text, options)) is stays


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        ("d0 = Sub (h, h0) b0 = Mul (d0, tenth) s0 = Add (b0, h0)", "r = Identity (s0)", True),
        ("d0 = Sub (h, h0) b0 = Mul (d0, tenth) s0 = Add (b0, h0)", "r = Relu (s0)", False),
        ("a0 = Mul (h0, nine) b0 = Mul (h, tenth) s0 = Add (a0, b0)", "r = Identity (s0)", True),
        ("s0 = Tanh (h0)", "r = Identity (s0)", False),
    ],
)
def test_a_state_is_made_by_a_step(first: str, second: str, *, stays: bool):
    """A second step begins with what the first one of the same weight makes; one that begins with a layer
    is none, as the first here.
    """
    text = f"""g (float[64,64] x) => (float[64,64] y)
        <float[64,64] w, float[64,64] v, float tenth = {{0.1}}, float nine = {{0.9}}> {{
        h = MatMul (x, w) h0 = Tanh (h) {first} {second}
        d = Sub (h, r) b = Mul (d, tenth) n = Add (r, b) y = MatMul (n, v) }}"""
    found = kept(text, Options(half=BFLOAT16))
    assert found.keys() == (set("dbn") if stays else set())


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("way", FAMILIES["moving averages"].ways)
def test_a_moving_average_arrives(way: str):
    """After 2000 steps the state is where the original's is."""
    one = np.eye(64, dtype=np.float32)
    proto = model(FAMILIES["moving averages"].text(way), {"w": one, "v": one})
    states = [_after_steps(each) for each in (proto, emulate(rewritten(proto).model))]
    assert np.abs(states[0] - states[1]).max() < 2e-3


def _after_steps(proto: onnx.ModelProto) -> NDArray[np.float32]:
    """The state after 2000 steps of numbers around 1."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    source, state = np.random.default_rng(0), np.zeros((64, 64), np.float32)
    for _ in range(2000):
        data = source.normal(1, 1, (64, 64)).astype(np.float32)
        state = session.run(["n"], {"x": data, "s": state})[0]
    return state


def _relative_error(original: onnx.ModelProto, result: onnx.ModelProto, feeds: Arrays) -> float:
    """The relative L2 error: sums are large beside what varies in them, which is what `error` is about."""
    return verify(original, result, dict(feeds)).outputs[0].metrics.relative_l2


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
@pytest.mark.parametrize("frames", [64, 600, 3000])
def test_a_phase_is_as_exact_as_what_adds_it_up(frames: int):
    """What a layer gives to a CumSum is float32 from the layer on, as is the sum: a source of a vocoder."""
    text = """g (float[1,T,16] h) => (float[1,T,16] y) <float[16,1] f, float[16,16] w, int64 axis = {1},
        float rate = {0.01}, float one = {1}, float turn = {6.2831855}> {
        a = MatMul (h, f) b = Relu (a) c = Mul (b, rate) d = Mod <fmod = 1> (c, one) s = CumSum (d, axis)
        p = Mul (s, turn) q = Sin (p) e = Add (h, q) y = MatMul (e, w) }"""
    assert {"b", "c", "d"} <= kept(text).keys()
    assert "y" in in_half(text)
    proto = model(text)
    feeds = {"h": np.random.default_rng(0).normal(2, 0.1, (1, frames, 16)).astype(np.float32)}
    assert _relative_error(proto, rewritten(proto).model, feeds) < 1e-3


@pytest.mark.parametrize("activation", ["Exp", "LeakyRelu", "Sigmoid", "Softplus", "Tanh"])
def test_what_a_layer_activates_is_as_exact_as_what_adds_it_up(activation: str):
    """A CumSum of activations: the layer and all that lies between it and the sum are float32."""
    text = f"""g (float[1,T,16] h) => (float[1,T,16] y)
        <float[16,16] f, float[16,16] w, int64 axis = {{1}}> {{
        a = MatMul (h, f) b = {activation} (a) s = CumSum (b, axis) q = Sin (s)
        y = MatMul (q, w) }}"""
    assert {"a", "b"} <= kept(text).keys()
    assert "y" in in_half(text)


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
def test_a_sum_does_not_take_up_rounded_weights():
    """What a rounded weight adds in each step grows with the sum; the layer before it is float32."""
    proto = model("""g (float[1,T,16] h) => (float[1,T,16] y)
        <float[16,16] f, float[16,16] w, int64 axis = {1}> {
        a = MatMul (h, f) b = Relu (a) s = CumSum (b, axis) q = Sin (s) y = MatMul (q, w) }""")
    feeds = {"h": np.random.default_rng(0).normal(0.5, 0.3, (1, 3000, 16)).astype(np.float32)}
    assert _relative_error(proto, rewritten(proto).model, feeds) < 1e-3


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
def test_a_count_goes_on_beyond_2048():
    """The mean of 3,000 rows is close, made of a sum and a count that a Loop carries."""
    text = """g (float[N,64] x, int64 n) => (float[64] y) <float[64,64] w, float[64] zeros, float zero = {0},
        float one = {1}, bool go = {1}> {
        a = MatMul (x, w)
        total, count = Loop (n, go, zeros, zero) <body = b (int64 i, bool c, float[64] s, float k)
            => (bool d, float[64] t, float l) {
            d = Identity (c) row = Gather (a, i) t = Add (s, row) l = Add (k, one) }>
        y = Div (total, count) }"""
    weights = {"zeros": np.zeros(64, np.float32)}
    proto = model(text, weights)
    feeds = {"x": 1 + np.random.default_rng(0).random((3000, 64), np.float32), "n": np.array(3000)}
    assert "a" in in_half(text, weights=weights)
    assert _relative_error(proto, rewritten(proto).model, feeds) < 1e-4


def test_a_floor_of_a_clip_that_is_taken_apart_is_seen():
    """Before opset 11 the bounds of a Clip are attributes, and it becomes a Max and a Min."""
    text = """<ir_version: 4, opset_import: ["": 9]> g (float[1,T,16] x) => (float[1,T,8] l)
        <float[16,16] d, float[16,8] mel> {
        s = MatMul (x, d) p = Mul (s, s) m = MatMul (p, mel)
        c = Clip <min = MIN, max = 1e4> (m) l = Log (c) }"""
    assert "s" not in kept(text.replace("MIN", "1.0"))
    assert {"s", "p", "m"} <= kept(text.replace("MIN", "1e-10")).keys()


def test_audio_of_integers_is_an_input_too():
    """16-bit audio is cast before anything else."""
    text = FAMILIES["spectra"].text("energies").replace("float[1,T,16] x", "int16[1,T,16] pcm")
    assert {"s", "p"} <= kept(text.replace("> {", "> { x = Cast <to = 1> (pcm)", 1)).keys()


def test_an_input_that_was_made_half_is_an_input_still():
    """With half inputs and outputs, a second rewrite changes nothing, not one byte."""
    options = Options(io=IOTypes.HALF)
    once = rewrite(model(FAMILIES["spectra"].text("energies")), options).model
    assert rewrite(once, options).model == once


@pytest.mark.skipif(not RUNS, reason="needs onnxruntime")
def test_loud_audio_is_close():
    """Powers of 1e8 have their logarithms."""
    weights = {"mel": np.full((8, 16), 0.01, np.float32), "u": np.full((1, 4), 0.5, np.float32)}
    proto = model(FAMILIES["spectra"].text("mel features"), weights)
    feeds = {"x": 1e4 * np.random.default_rng(0).normal(size=(1, 50, 16)).astype(np.float32)}
    assert verify(proto, rewritten(proto).model, feeds).error < 5e-3


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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_neutral_movement_changes_no_decision(family: str):
    """A Reshape, Transpose, Slice, Identity, Squeeze or Dropout between two nodes loses no node to half."""
    _, lost = _law(family, 23)
    assert lost == []


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_hardly_any_neutral_movement_changes_a_decision(family: str):
    """Of all such copies, at most 2 % lose a node."""
    tried, lost = _law(family, 1)
    assert len(lost) <= tried * 0.02, lost
