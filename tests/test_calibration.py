"""Calibration: many samples, one at a time, reduced within the run; saved, merged, and used later."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import Observed
from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.errors import FeedError, OptionError
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.running import instrumented_model, observation
from tests.text import model

pytest.importorskip("onnxruntime")
CHAIN = """g (float[N,4] x, float[N,4] m) => (float[N,4] y)
    <float[4,4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4}> {
    [masked] a = Add (x, m) [moved] t = Transpose (a) [back] b = Transpose (t)
    [scaled] c = MatMul (b, w) [half] h = Relu (c) [soft] y = Softmax (h) }"""
BODIES = """g (float[4] x, bool go, int64 trips) => (float[4] y, float last)
    <float[1] big = {300}, float[1] tiny = {0.001}, bool yes = {1}> {
    picked = If (go) <
        then_branch = taken () => (float[4] p) { p = Mul (x, big) },
        else_branch = other () => (float[4] q) { q = Mul (x, tiny) } >
    grown, every = Loop (trips, yes, picked) <
        body = steps (int64 i, bool before, float[4] value) => (bool after, float[4] next, float[4] seen)
        { after = Identity (before) next = Add (value, value) seen = Sub (next, big) } >
    total, sums = Scan (x, grown) <num_scan_inputs = 1, body = added (float[4] state, float[] one)
        => (float[4] state_out, float[4] each) { state_out = Add (state, one) each = Neg (state_out) } >
    y = Sub (total, picked)
    last = ReduceSum <keepdims = 0> (every) }"""


def feeds(scale=1.0, seed=0, rows=2, mask=0.0):
    """Random inputs of CHAIN; the first element of the mask is `mask`."""
    random = np.random.default_rng(seed)
    m = np.zeros((rows, 4), np.float32)
    m[0, 0] = mask
    return {"x": (random.standard_normal((rows, 4)) * scale).astype(np.float32), "m": m}


# ---- what is seen


def test_extremes_and_counts_are_those_of_the_values():
    """The numbers that are reduced in the runs are what NumPy says of the values."""
    samples = [feeds(seed=seed, scale=10.0 ** (4 * seed - 8)) for seed in range(4)]
    samples += [feeds(seed=seed, rows=3) for seed in range(3)]
    seen = amp_rewrite.observe(model(CHAIN), samples, device="cpu")
    arrays = [(s["x"] + s["m"]) * np.float32([1, 2, 3, 4]) for s in samples]
    low, high = (pick(map(pick, (a.ravel().tolist() for a in arrays))) for pick in (min, max))
    counted = np.concatenate([np.abs(a).ravel() for a in arrays[: observation.COUNTED]])
    expected = Extremes(
        pytest.approx(low),
        pytest.approx(high),
        samples=7,
        counted=counted.size,
        flushed=int(np.count_nonzero((counted > 0) & (counted <= 2**-25))),
    )
    assert (seen["h"].low, seen["h"].high) == (0, pytest.approx(high))
    assert expected.flushed > 0
    assert seen["c"] == expected
    assert seen.keys() == {"x", "m", "a", "t", "b", "c", "h", "y"}
    assert seen["a"] == seen["t"] == seen["b"]


def test_elements_that_are_not_finite_hide_no_others():
    """Infinities and NaN are counted; the extremes are those of the other elements, in later samples too."""
    samples = [feeds(seed=seed) for seed in range(4)]
    samples += [feeds(seed=5, mask=-np.inf), feeds(seed=6, mask=1e30), feeds(seed=7)]
    text = CHAIN.replace("[soft] y = Softmax (h)", "zero = Mul (h, z) y = Add (zero, a)")
    text = text.replace("<float[4,4] w", "<float z = {0}, float[4,4] w").replace("Relu (c)", "Abs (c)")
    seen = amp_rewrite.observe(model(text), samples, device="cpu")
    finite = np.concatenate([(s["x"] + s["m"]).ravel() for s in samples])
    finite = finite[np.isfinite(finite)]
    assert (seen["a"].low, seen["a"].high) == (finite.min(), finite.max())
    assert (seen["a"].not_finite, seen["a"].beyond) == (1, 1)
    assert seen["zero"].not_finite == 4
    assert (seen["zero"].low, seen["zero"].high) == (0, 0)


@pytest.mark.parametrize(("ir_version", "opset"), [(3, 11), (8, 17), (10, 21)])
def test_values_in_bodies_are_seen(ir_version, opset):
    """Of If, Loop and Scan, over all iterations; a branch that no sample took is not there."""
    proto = model(BODIES)
    proto.ir_version, proto.opset_import[0].version = ir_version, opset
    stored = [(each.name, each.data_type, each.dims) for each in proto.graph.initializer]
    proto.graph.input.extend(itertools.starmap(onnx.helper.make_tensor_value_info, stored))
    x = np.float32([1, -2, 3, 4])
    samples = [{"x": x * k, "go": np.array(True), "trips": np.array(k)} for k in (1, 2, 3)]
    seen = amp_rewrite.observe(proto, samples, device="cpu")
    assert "q" not in seen
    assert (seen["p"].low, seen["p"].high) == (-1800, 3600)
    assert (seen["next"].low, seen["next"].high) == (-1800 * 2**3, 3600 * 2**3)
    assert seen["value"].high == 3600 * 4
    assert seen["seen"].high == 3600 * 8 - 300
    assert (seen["each"].low, seen["each"].high) == (-seen["state_out"].high, -seen["state_out"].low)
    assert seen["next"].counted == 4 * (1 + 2)  # of the samples whose elements are counted
    other = {"x": x, "go": np.array(False), "trips": np.array(0)}
    seen = amp_rewrite.observe(proto, [other], device="cpu")
    assert seen["q"].high == pytest.approx(0.004)
    assert "p" not in seen
    assert "next" not in seen  # no iteration ran


def test_what_leaves_half_in_a_body_stays_float32():
    """A unit of a Loop's body whose value overflows has the reason, with numbers."""
    samples = [
        {"x": np.float32([1, 2, 3, 400]), "go": np.array(True), "trips": np.array(3)} for _ in range(2)
    ]
    proto = model(BODIES)
    made = amp_rewrite.analyze(proto, observed=amp_rewrite.observe(proto, samples, device="cpu"))
    held = {u.node.outputs[0].name for u in made.graph.units if by(made, u) is Authority.OBSERVATION}
    assert {"p", "next", "seen"} <= held


def by(made, unit):
    """Who decides on a unit."""
    return made.painting.entries[unit.index].authority


def test_samples_are_drawn_one_at_a_time():
    """A generator is read as its samples are run, and on_sample counts."""
    drawn, done = [], []

    def samples():
        for seed in range(5):
            assert len(drawn) == len(done)
            drawn.append(seed)
            yield feeds(seed=seed)

    amp_rewrite.observe(model(CHAIN), samples(), device="cpu", on_sample=done.append)
    assert done == [1, 2, 3, 4, 5]


def test_the_weights_may_be_in_another_file(tmp_path):
    """A model with external data is observed, and nothing is written beside it."""
    onnx.save(model(CHAIN), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w")
    before = sorted(tmp_path.iterdir())
    seen = amp_rewrite.observe(tmp_path / "m.onnx", feeds(), device="cpu")
    assert seen == amp_rewrite.observe(model(CHAIN), feeds(), device="cpu")
    assert sorted(tmp_path.iterdir()) == before


def test_large_weights_are_put_into_a_file(monkeypatch):
    """What is seen is the same, in bodies as well, and nothing is left of the file."""
    sample = {"x": np.float32([1, -2, 3, 4]), "go": np.array(True), "trips": np.array(2)}
    cases = ((model(CHAIN), feeds()), (model(BODIES), sample))
    seen = [amp_rewrite.observe(proto, given, device="cpu") for proto, given in cases]
    made, make = [], tempfile.TemporaryDirectory
    monkeypatch.setattr(instrumented_model, "LARGE", 0)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda: made.append(make()) or made[-1])
    assert [amp_rewrite.observe(proto, given, device="cpu") for proto, given in cases] == seen
    assert len(made) == 2
    assert not any(Path(folder.name).exists() for folder in made)


# ---- saved and merged


def test_what_was_seen_is_saved_merged_and_read_back(tmp_path):
    """Two halves merge to the whole, in any order, and the bytes are the same."""
    proto, samples = model(CHAIN), [feeds(seed=seed, scale=1e5) for seed in range(4)]
    one, two = (amp_rewrite.observe(proto, part, device="cpu") for part in (samples[:2], samples[2:]))
    names = [tmp_path / f"{at}.json" for at in range(4)]
    one.merge(two).save(names[0])
    two.merge(one).save(names[1])
    one.save(names[2])
    Observed.load(names[2]).merge(two).save(names[3])
    assert len({name.read_bytes() for name in (names[0], names[1], names[3])}) == 1
    again = Observed.load(names[0])
    assert again == one.merge(two)
    assert (again.samples, again.model) == (4, one.model)


def test_what_is_no_file_of_this_kind_or_of_another_model_is_refused(tmp_path):
    """The file is named, and what would make it."""
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(OptionError, match=r"bad.json: does not hold .*make it again with `Observed.save`"):
        Observed.load(tmp_path / "bad.json")
    seen = amp_rewrite.observe(model(CHAIN), feeds(), device="cpu")
    seen.save(tmp_path / "seen.json")
    other = amp_rewrite.observe(model(CHAIN.replace("Relu", "Abs")), feeds(), device="cpu")
    with pytest.raises(OptionError, match="is of another model than"):
        Observed.load(tmp_path / "seen.json").merge(other)


def raising():
    """A sample, and then an error."""
    yield feeds()
    raise ZeroDivisionError("no more")


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (raising(), "samples[1]: ZeroDivisionError was raised in its place (no more)"),
        (iter(()), "there is no sample to observe"),
        ([feeds(), {"x": feeds()["x"]}], "samples[1]: input 'm' is missing; add it, as"),
        ([feeds(mask=np.nan)], "samples[0]: input 'm' holds NaN; leave this sample out"),
    ],
    ids=["raises", "empty", "lacks an input", "NaN"],
)
def test_an_iterable_that_is_wrong_is_one_line(samples, said):
    """What is raised names the sample, and what was raised is its cause."""
    with pytest.raises(FeedError) as error:
        amp_rewrite.observe(model(CHAIN), samples, device="cpu")
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)
