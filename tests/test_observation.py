"""Values that are reduced within the run: which of them are counted, and NaN, infinities and empty values."""

import itertools

import numpy as np
import pytest

import amp_rewrite
from amp_rewrite.running import observation, sessions
from tests.text import model

pytest.importorskip("onnxruntime")


def observe(text, samples):
    """What a model shows on the CPU."""
    return amp_rewrite.observe(model(text), samples, device="cpu")


SUMS = """g (float[N] x) => (float[N] y) <float big = {1e20}, float huge = {1e38}, float[1] two = {2}> {
    e = Exp (x) a = Mul (e, two) b = Mul (a, big) h = Mul (a, huge) c = Sub (b, b) r = Relu (c)
    i = Mul (a, x) y = Add (r, a) }"""


@pytest.mark.parametrize("at", range(5))
def test_nan_and_infinities_are_seen_in_any_sample(at):
    """In the first ones, whose elements are all counted, and in later ones; they hide no other element."""
    samples = [{"x": np.full(64, -60, np.float32)} for _ in range(6)]
    samples[at]["x"][7] = 60
    seen = observe(SUMS, samples)
    assert (seen["b"].not_finite, seen["c"].not_finite) == (1, 1)
    assert (seen["c"].low, seen["c"].high) == (0, 0)
    assert (seen["x"].low, seen["x"].high) == (-60, 60)


def test_a_nan_beside_elements_that_float16_holds_is_counted():
    """ReduceMax leaves it out; the root of a negative number is seen all the same."""
    samples = [{"x": np.arange(64, dtype=np.float32)} for _ in range(4)]
    samples[3]["x"][7] = -1
    seen = observe(
        "g (float[N] x) => (float[N] y) <float two = {2}> { a = Sqrt (x) y = Add (a, two) }", samples
    )
    assert (seen["a"].not_finite, seen["y"].not_finite, seen["a"].low) == (1, 1, 0)


def test_what_leaves_float16_in_the_first_runs_is_seen_in_all():
    """NaN or too large in one or both of the first two: counted in all; others in these two."""
    samples = [{name: np.arange(64, dtype=np.float32) for name in "xmk"} for _ in range(3)]
    samples[0]["x"][7], samples[0]["m"][7] = np.inf, -np.inf
    samples[0]["k"][9] = samples[1]["k"][9] = 1e6
    seen = observe(
        """g (float[N] x, float[N] m, float[N] k) => (float[N] y, float[N] z, float[N] w)
        { y = Add (x, m) z = Neg (k) w = Sin (k) }""",
        samples,
    )
    y, z, w = seen["y"], seen["z"], seen["w"]
    assert (y.low, y.high, y.samples, y.counted, y.not_finite) == (0, 126, 3, 3 * 64, 1)
    assert (z.low, z.high, z.samples, z.counted, z.beyond) == (-1e6, 0, 3, 3 * 64, 2)
    assert (w.samples, w.counted) == (3, 2 * 64)


@pytest.mark.parametrize("sizes", [*itertools.permutations((3, 2, 0))])
def test_values_without_elements_are_no_samples(sizes):
    """Of a value that is empty in a run nothing is seen there; a Pad of it has zeros."""
    samples = [{"x": np.arange(1, size + 1, dtype=np.float32)} for size in sizes]
    text = "g (float[N] x) => (float[M] y) <int64[2] one = {1, 0}> { a = Neg (x) y = Pad (a, one) }"
    seen = observe(text, samples)
    assert (seen["a"].low, seen["a"].high, seen["a"].samples, seen["y"].samples) == (-3, -1, 2, 3)
    assert (seen["y"].low, seen["y"].high) == (-3, 0)
    assert (seen["a"].counted, seen["y"].counted) == (sum(sizes[:2]), sum(sizes[:2]) + 2)


def test_sessions_are_opened_again_for_further_values_to_count(monkeypatch):
    """One more than REOPENED times after the first two samples; then all values are counted."""
    opened, open_session = [], sessions.opened
    monkeypatch.setattr(sessions, "opened", lambda *given: opened.append(1) or open_session(*given))
    names = "abcdefgh"
    body = " ".join(f"{name} = Add (x, m{name})" for name in names)
    inputs, outputs = (", ".join(f"float[2] {kind}{name}" for name in names) for kind in ("m", ""))
    samples = [{f"m{name}": np.zeros(2, np.float32) for name in names} for _ in range(2 + len(names))]
    for at, name in enumerate(names, start=2):
        samples[at][f"m{name}"][:] = 1e6
    text = f"g (float[2] x, {inputs}) => ({outputs}) {{ {body} }}"
    seen = observe(text, [{"x": np.ones(2, np.float32), **sample} for sample in samples])
    assert len(opened) == 1 + 1 + observation.REOPENED + 1
    assert {seen[name].beyond for name in names} == {2}


COMPUTED = """<ir_version: 3, opset_import: ["": 13]>
    g (float[N,2] x, float[2,2] w, bool yes) => (float[N,2] y)
    <float[2,2] w = {1, -2, 3, -4}, bool yes = {1}> {
    v = Neg (w) p = MatMul (x, v) c = If (yes) <
        then_branch = a () => (float[2] t) { t = Constant <value_floats = [1.0, 2.0]> () },
        else_branch = b () => (float[2] e) { e = Constant <value_floats = [3.0, 4.0]> () }>
    y = Add (p, c) }"""


def test_what_no_input_changes_is_seen_in_every_sample():
    """As often, and counted as often, as what inputs change."""
    seen = observe(COMPUTED, [{"x": np.array([[1, 2]], np.float32)}] * 3)
    assert (seen["v"].low, seen["v"].high, seen["v"].samples, seen["v"].counted) == (-3, 4, 3, 8)
    assert (seen["p"].samples, seen["p"].counted) == (3, 4)


NESTED = """g (float[2] x, int64 trips) => (float[2] y) <bool yes = {1}> {
    y = Loop (trips, yes, x) <
        body = outer (int64 i, bool before, float[2] value) => (bool after, float[2] next)
        { after = Identity (before) next = Loop (i, yes, value) <
            body = inner (int64 j, bool was, float[2] old) => (bool is, float[2] new)
            { is = Identity (was) new = Add (old, old) }> }> }"""


@pytest.mark.parametrize("trips", [(1, 1, 4), (4, 4, 4)])
def test_a_loop_in_a_loop_shows_its_values(trips):
    """Over all iterations of both, of which the first of the outer has none of the inner one."""
    samples = [{"x": np.float32([-1, 3]), "trips": np.array(count)} for count in trips]
    seen = observe(NESTED, samples)
    runs = sum(count > 1 for count in trips)
    assert (seen["new"].low, seen["new"].high, seen["new"].samples) == (-(2.0**6), 3 * 2**6, runs)
    assert seen["new"].counted == sum(2 * (0 + 1 + 2 + 3) for count in trips[:2] if count > 1)
    assert (seen["value"].low, seen["value"].high, seen["value"].samples) == (-(2.0**3), 3 * 2**3, 3)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 13, 18, 21])
def test_any_opset_is_observed(opset):
    """Elements are counted from opset 9 on, extremes are seen at all."""
    text = "g (float[N] x) => (float[N] y) { a = Neg (x) y = Relu (a) }"
    header = f'<ir_version: 8, opset_import: ["": {opset}]> '
    samples = [{"x": np.float32([-1e5, 0, 2])} for _ in range(3)]
    seen = observe(header + text, samples)["a"]
    assert (seen.low, seen.high, seen.samples) == (-2, 1e5, 3)
    assert (seen.counted, seen.beyond) == ((9, 3) if opset >= 9 else (0, 0))


def test_what_was_never_finite_is_not_there():
    """A value all of whose elements are infinite or NaN is left out, also where elements are not counted."""
    for opset in (8, 17):
        text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[N] x) => (float[N] y, float[N] z)'
        text += " <float zero = {0}> { y = Div (x, zero) z = Neg (x) }"
        seen = observe(text, [{"x": np.float32([1, 0, -1])} for _ in range(3)])
        assert seen.keys() == {"x", "z"}
