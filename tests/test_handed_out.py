"""Values that a calibration reduces outside of the run, since they are small, and which."""

from dataclasses import replace

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.running import handed_out, reducible_values, sessions
from amp_rewrite.running.measured_model import MeasuredModel
from tests.text import model

pytest.importorskip("onnxruntime")
CHAIN = """g (float[N,4] x, float[N,4] m) => (float[N,4] y)
    <float[4,4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4}> {
    a = Add (x, m) t = Transpose (a) b = Transpose (t) c = MatMul (b, w) h = Relu (c)
    s = Sin (h) p = Mul (s, c) y = Relu (p) }"""


def feeds(scale=1.0, seed=0, rows=2, mask=0.0):
    """Random inputs of CHAIN; the first element of the mask is `mask`."""
    random = np.random.default_rng(seed)
    m = np.zeros((rows, 4), np.float32)
    m[0, 0] = mask
    return {"x": (random.standard_normal((rows, 4)) * scale).astype(np.float32), "m": m}


SAMPLES = {
    "finite": [feeds(seed=seed, scale=10.0 ** (3 * seed - 6)) for seed in range(4)],
    "infinite": [*(feeds(seed=seed) for seed in range(3)), feeds(seed=3, mask=-np.inf), feeds(seed=4)],
    "large": [*(feeds(seed=seed) for seed in range(3)), feeds(seed=3, mask=-1e9), feeds(seed=4)],
}


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize(("most", "worth"), [(0, 0), (20, 0), (20, 8)])
def test_it_does_not_matter_where_values_are_reduced(most, worth, samples, monkeypatch):
    """Outside of the run, within it, or some here and some there: the same extremes of the same runs.

    Elements are counted of the same values; with NaN within the run, of all others as well from then on.
    """
    outside = amp_rewrite.observe(model(CHAIN), samples, device="cpu")
    monkeypatch.setattr(handed_out, "MOST", most)
    monkeypatch.setattr(handed_out, "WORTH_A_NODE", worth)
    within = amp_rewrite.observe(model(CHAIN), samples, device="cpu")
    assert outside.keys() == within.keys()
    for name, seen in within.items():
        ends = {"low": pytest.approx(seen.low), "high": pytest.approx(seen.high)}
        assert outside[name].counted <= seen.counted
        assert outside[name] == replace(seen, **ends, counted=outside[name].counted), name


@pytest.mark.parametrize(("most", "worth"), [(0, 0), (20, 0), (20, 8)])
@pytest.mark.parametrize("position", range(7))
def test_samples_side_by_side_show_what_they_show_one_by_one(position, most, worth, monkeypatch):
    """Wherever one leaves float16, is infinite, or is larger, and elements are counted from there on."""
    odd = (feeds(mask=-1e9), feeds(mask=-np.inf), feeds(rows=5), feeds(rows=5, mask=-1e9))
    samples = [[feeds(seed=seed) for seed in range(7)] for _ in odd]
    for each, sample in zip(samples, odd, strict=True):
        each[position] = sample
    monkeypatch.setattr(handed_out, "MOST", most)
    monkeypatch.setattr(handed_out, "WORTH_A_NODE", worth)
    beside = [amp_rewrite.observe(model(CHAIN), each, device="cpu") for each in samples]
    monkeypatch.setattr(handed_out, "ABREAST", 1)
    monkeypatch.setattr(handed_out, "MOST", most // 2)
    assert beside == [amp_rewrite.observe(model(CHAIN), each, device="cpu") for each in samples]


def test_runs_are_side_by_side_where_values_are_small(monkeypatch):
    """On the CPU, from the first sample on, and twice as many elements are then handed out at a time."""
    asked, run = [], sessions.run_side_by_side
    monkeypatch.setattr(sessions, "run_side_by_side", lambda *given: asked.append(given[1]) or run(*given))
    samples = [feeds(seed=seed) for seed in range(8)]
    amp_rewrite.observe(model(CHAIN), samples, device="cpu")
    names = [[where for where, _ in each] for each in asked]
    assert names == [[f"samples[{at}]", f"samples[{at + 1}]"] for at in (0, 2, 4, 6)]
    monkeypatch.setattr(handed_out, "SMALL", 7)
    amp_rewrite.observe(model(CHAIN), samples, device="cpu")
    assert len(asked) == 4
    values = {"a": "a", "b": "b"}
    monkeypatch.setattr(handed_out, "MOST", 10)
    assert handed_out.chosen(values, {"a": 5, "b": 6}, {}).names == {"a"}
    assert handed_out.chosen(values, {"a": 5, "b": 8}, {}).names == {"a"}
    assert handed_out.chosen(values, {"a": 6, "b": 7}, {}).names == set()
    assert handed_out.chosen(values, {"a": 6, "b": 8}, {}).names == {"a"}


def test_larger_inputs_change_what_is_handed_out(monkeypatch):
    """What was small enough for one sample is not handed out for a larger one, where it is too large."""
    chosen, choose = [], handed_out.chosen
    monkeypatch.setattr(handed_out, "MOST", 100)
    monkeypatch.setattr(handed_out, "chosen", lambda *given: chosen.append(choose(*given)) or chosen[-1])
    samples = [feeds(seed=rows, rows=rows) for rows in (2, 1, 2, 40, 30)]
    seen = amp_rewrite.observe(model(CHAIN), samples, device="cpu")
    assert [each.elements for each in chosen] == [4 * 8, 0]
    assert seen["a"].high == max((sample["x"] + sample["m"]).max() for sample in samples)
    assert seen["a"].samples == 5


def test_the_smallest_values_are_handed_out():
    """As many as have MOST elements together, each with what follows from it."""
    values = {"a": "a", "b": "a", "c": "c", "d": "d"}
    chosen = handed_out.chosen(values, {"a": 5, "c": handed_out.MOST - 5, "d": handed_out.MOST}, feeds())
    assert chosen.names == {"a", "b", "c"}
    assert chosen.elements == handed_out.MOST


def test_bulky_values():
    """What is worth a node is bulky, with what follows from it, if other values are reduced within runs.

    Those that no input changes are, and do not count: onnxruntime does it before the first run.
    """
    values = {"a": "a", "b": "b", "c": "b", "w": "w", "large": "large"}
    worth, most = handed_out.WORTH_A_NODE, handed_out.MOST
    elements = {"a": worth, "b": worth + 1, "w": 2 * worth, "large": most}
    assert handed_out.chosen(values, elements, {}, frozenset({"w"})).bulky == {"b", "c"}
    assert handed_out.chosen(values, elements, {}, frozenset({"w", "large"})).bulky == set()
    del elements["large"]
    assert handed_out.chosen(values, elements, {}).bulky == set()


@pytest.mark.parametrize("mask", [0.0, -1e9])
def test_many_runs_reduce_what_is_bulky_unless_its_elements_are_counted(mask, monkeypatch):
    """It is handed out in the first two runs, and later on if it left float16 in these."""
    handed, show = [], MeasuredModel._measured
    monkeypatch.setattr(handed_out, "MOST", 40)
    monkeypatch.setattr(handed_out, "WORTH_A_NODE", 7)
    note = {"_measured": lambda *a, **k: handed.append(names(a[0])) or show(*a, **k)}
    monkeypatch.setattr(MeasuredModel, "_measured", note["_measured"])
    samples = [feeds(seed=seed, mask=mask) for seed in range(4)]
    seen = amp_rewrite.observe(model(CHAIN), samples, device="cpu")
    assert ["a" in each for each in handed] == [True, True, mask != 0, mask != 0]
    assert (seen["a"].samples, seen["a"].beyond) == (4, 4 * (mask != 0))


def test_nan_that_is_handed_out_tells_of_what_is_reduced_within(monkeypatch):
    """Of a large value whose NaN reaches a small one, the elements are counted in the run that shows it."""
    monkeypatch.setattr(handed_out, "MOST", 1)
    proto = model("""g (float[N] x, float[N] m) => (float mean)
        { a = Add (x, m) mean = ReduceMean <keepdims = 0> (a) }""")
    samples = [{"x": np.arange(64, dtype=np.float32), "m": np.zeros(64, np.float32)} for _ in range(4)]
    samples[3]["x"][7], samples[3]["m"][7] = np.inf, -np.inf
    seen = amp_rewrite.observe(proto, samples, device="cpu")["a"]
    assert (seen.low, seen.high, seen.not_finite, seen.counted) == (0, 63, 1, 64 * 3)


def test_what_leaves_float16_in_the_first_runs_is_seen_in_all(monkeypatch):
    """NaN or too large within one or both of the first two: counted in all; others in these two."""
    monkeypatch.setattr(handed_out, "MOST", 0)
    proto = model("""g (float[N] x, float[N] m, float[N] k) => (float[N] y, float[N] z, float[N] w)
        { y = Add (x, m) z = Neg (k) w = Sin (k) }""")
    samples = [{name: np.arange(64, dtype=np.float32) for name in "xmk"} for _ in range(3)]
    samples[0]["x"][7], samples[0]["m"][7] = np.inf, -np.inf
    samples[0]["k"][9] = samples[1]["k"][9] = 1e6
    seen = amp_rewrite.observe(proto, samples, device="cpu")
    y, z, w = seen["y"], seen["z"], seen["w"]
    assert (y.low, y.high, y.samples, y.counted, y.not_finite) == (0, 126, 3, 3 * 64, 1)
    assert (z.low, z.high, z.samples, z.counted, z.beyond) == (-1e6, 0, 3, 3 * 64, 2)
    assert (w.samples, w.counted) == (3, 2 * 64)


def test_values_without_elements_are_no_samples(monkeypatch):
    """Of a value that is empty in one of the first runs, nothing is seen there."""
    monkeypatch.setattr(handed_out, "MOST", 0)
    proto = model("g (float[N] x) => (float[N] y) { y = Neg (x) }")
    samples = [{"x": np.arange(size, dtype=np.float32)} for size in (3, 0)]
    seen = amp_rewrite.observe(proto, samples, device="cpu")["y"]
    assert (seen.low, seen.high, seen.samples, seen.counted) == (-2, 0, 1, 3)


def test_sessions_are_opened_again_for_further_values_to_count(monkeypatch):
    """Four times; then all values are counted, whatever float16 holds of them."""
    opened, open_session = [], MeasuredModel.open
    opening = {"open": lambda *a, **k: opened.append(k["many"]) or open_session(*a, **k)}
    monkeypatch.setattr(MeasuredModel, "open", opening["open"])
    monkeypatch.setattr(handed_out, "MOST", 0)
    names = "abcdefgh"
    body = " ".join(f"{name} = Add (x, m{name})" for name in names)
    given, made = (", ".join(f"float[2] {kind}{name}" for name in names) for kind in ("m", ""))
    samples = [{f"m{name}": np.zeros(2, np.float32) for name in names} for _ in range(2 + len(names))]
    for at, name in enumerate(names, start=2):
        samples[at][f"m{name}"][:] = 1e6
    proto = model(f"g (float[2] x, {given}) => ({made}) {{ {body} }}")
    seen = amp_rewrite.observe(proto, [{"x": np.ones(2, np.float32), **s} for s in samples], device="cpu")
    assert opened == [False, *[True] * 5]
    assert {seen[name].beyond for name in names} == {2}


COMPUTED = """<ir_version: 3, opset_import: ["": 13]>
    g (float[N,2] x, float[2,2] w, bool yes) => (float[N,2] y)
    <float[2,2] w = {1, -2, 3, -4}, bool yes = {1}> {
    v = Neg (w) p = MatMul (x, v) c = If (yes) <
        then_branch = a () => (float[2] t) { t = Constant <value_floats = [1.0, 2.0]> () },
        else_branch = b () => (float[2] e) { e = Constant <value_floats = [3.0, 4.0]> () }>
    y = Add (p, c) }"""


def test_what_no_input_changes():
    """It is computed of what a model stores, unless a run may give that, as from IR version 4 on.

    A node with bodies is not computed before a run.
    """
    assert reducible_values.folded(model(COMPUTED)) == {"v"}
    given = model(COMPUTED.replace("ir_version: 3", "ir_version: 4"))
    assert reducible_values.folded(given) == set()


@pytest.mark.parametrize("worth", [1, 4, 5])
def test_what_no_input_changes_is_seen_in_every_sample(worth, monkeypatch):
    """As often, and counted as often, as what inputs change; it is handed out in the first two runs alone."""
    handed, show = [], MeasuredModel._measured
    monkeypatch.setattr(handed_out, "WORTH_A_SESSION", worth)
    note = {"_measured": lambda *a, **k: handed.append(names(a[0])) or show(*a, **k)}
    monkeypatch.setattr(MeasuredModel, "_measured", note["_measured"])
    samples = [{"x": np.array([[1, 2]], np.float32)}] * 3
    seen = amp_rewrite.observe(model(COMPUTED), samples, device="cpu")
    assert (seen["v"].low, seen["v"].high, seen["v"].samples, seen["v"].counted) == (-3, 4, 3, 8)
    assert (seen["p"].samples, seen["p"].counted) == (3, 4)
    assert ["v" in each for each in handed] == [True, True, worth > 4]


def names(measured):
    """The values that a session hands out."""
    return [name for slot in measured.handed_out for name in slot.names]
