"""Values that are reduced within the run: which of them are counted, and NaN, infinities and empty values."""

import itertools

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.errors import FeedError
from amp_rewrite.policy.evidence import Authority, in_words
from amp_rewrite.policy.options import Options
from amp_rewrite.running import observation, sessions
from amp_rewrite.running.inputs.feeds import InputSource
from amp_rewrite.running.sessions import Device
from tests import commands
from tests.text import model, values_in_half

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


# ---- what float32 runs saw in a model, and what they keep in float32

GROWS = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {300, 0, 0, 300}, float[2,2] v = {1, 0, 0, 1}> {
    [small] a = MatMul (x, w) [large] b = MatMul (a, w) [moved] c = Transpose (b) [last] d = MatMul (c, v)
    [bounded] y = Tanh (d) }"""
"""The second product reaches 90000 for an x of 1, which float16 turns into infinity and then into NaN."""
MASKED = """g (float[2,2] x, bool[2,2] k) => (float[2,2] y) <float[2,2] w, float fill = {-3.4e38}> {
    [scores] s = MatMul (x, w) [mask] a = Where (k, s, fill) [soft] p = Softmax (a)
    [last] y = MatMul (p, w) }"""
SAMPLE = {"x": np.eye(2, dtype=np.float32)}


def held(seen, half="float16", text=GROWS):
    """The reasons that observation keeps nodes in float32, by the name of the node."""
    made = amp_rewrite.analyze(model(text), Options(half=half, rescale=False), observed=seen)
    entries = made.painting.entries
    return {
        unit.node.name: in_words(entries[unit.index].evidence)
        for unit in made.graph.units
        if entries[unit.index].authority is Authority.OBSERVATION
    }


def test_extremes_of_all_floats_over_all_samples():
    """Inputs and intermediate values, with their lowest and highest element; no sample is an error."""
    tiny = {"x": SAMPLE["x"] / 1000}
    seen = amp_rewrite.observe(model(GROWS), [SAMPLE, tiny], device=Device.CPU)
    assert seen.keys() == {"x", "a", "b", "c", "d", "y"}
    assert seen["x"] == Extremes(0, 1, samples=2, counted=8)
    assert seen["b"] == Extremes(0, 90000, samples=2, counted=8, beyond=2)
    with pytest.raises(FeedError, match="no sample"):
        amp_rewrite.observe(model(GROWS), [], device=Device.CPU)


def test_sparse_values_are_passed_over():
    """A sparse Constant has no extremes, and does not prevent observation."""
    proto = model("g (float[4,4] x) => (float[4,4] y) { y = Relu (x) }")
    values = onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [1], [1])
    indices = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [3])
    sparse = onnx.helper.make_sparse_tensor(values, indices, [4, 4])
    proto.graph.node.append(onnx.helper.make_node("Constant", [], ["s"], sparse_value=sparse))
    proto.graph.node.append(onnx.helper.make_node("MatMul", ["y", "s"], ["z"]))
    seen = amp_rewrite.observe(proto, [{"x": np.ones((4, 4), np.float32)}], device=Device.CPU)
    assert seen.keys() == {"x", "y", "z"}


@pytest.mark.parametrize(
    ("seen", "half", "text", "stay"),
    [
        # who makes or reads 90000; a factor of 2 is left to other inputs
        ({"b": Extremes(0, 90000, samples=1, counted=4, beyond=2)}, "float16", GROWS, "large moved"),
        ({"b": Extremes(-32000, 1)}, "float16", GROWS, ""),
        ({"b": Extremes(-33000, 1)}, "float16", GROWS, "large moved"),
        ({"c": Extremes(0, 90000)}, "float16", GROWS, "moved last"),
        ({"b": Extremes(1, 1e30)}, "bfloat16", GROWS, ""),
        # a mask on its path to a softmax is clamped, observed or not; another product stays float32
        ({"a": Extremes(-3.4e38, 0), "s": Extremes(1, 5)}, "float16", MASKED, ""),
        ({"y": Extremes(1, 1e5)}, "float16", MASKED, "last"),
    ],
)
def test_who_reads_or_makes_what_is_too_large_stays(seen, half, text, stay):
    """With the reason; other nodes do not."""
    reasons = held(seen, half, text)
    assert set(reasons) == set(stay.split())
    if seen["b" if "b" in seen else next(iter(seen))].beyond:
        told = "9e+04 was seen in 'b' (50.00% of its elements are beyond), and float16 ends at 65504"
        assert reasons["large"] == told


SQUARES = """g (float[8,16] x) => (float[8,16] y) <float[16,16] w, float[16,16] v, int64[1] last = {-1}> {
    a = MatMul (x, w) b = Mul (a, a) s = ReduceSum (b, last) d = Add (s, b) y = MatMul (d, v) }"""


def test_given_samples_free_what_is_denied_for_its_range(tmp_path):
    """A square and a sum become half where the given samples leave a factor of 16 to half's end.

    Synthetic inputs hold what leaves half's range, and prove nothing of others.
    """
    proto = model(SQUARES, {"w": np.eye(16, dtype=np.float32)})
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    given, large = (amp_rewrite.observe(proto, {"x": size * x}) for size in (0.5, 30.0))
    made = amp_rewrite.observe(proto, {"x": 0.5 * x}, inputs=InputSource(seed=0))
    for seen, half in ((given, {"b", "s"}), (large, set()), (made, set()), (made.merge(given), set())):
        assert values_in_half(amp_rewrite.analyze(proto, observed=seen)) & {"b", "s"} == half
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=0.5 * x)
    done = commands.run(
        tmp_path / "m.onnx", "--data", tmp_path / "x.npz", f"--save=plan={tmp_path / 'p.json'}"
    )
    assert done.exit_code == 0, done.output
    analysis = amp_rewrite.analyze(tmp_path / "m.onnx", replay=amp_rewrite.load_plan(tmp_path / "p.json"))
    assert values_in_half(analysis) >= {"b", "s"}
