"""What a calibration does not reduce, since it follows from other values: outputs of Pad, and NaN."""

import numpy as np
import pytest
from onnx import helper

import amp_rewrite
from amp_rewrite.running import followers, handed_out, nan_free, reductions
from amp_rewrite.running.followers import Follower
from amp_rewrite.running.slots import Treatment
from tests.text import model

pytest.importorskip("onnxruntime")
PADDED = """g (float[N] x) => (float[M] y) <int64[2] one = {1, 0}, int64[1] whole = {-1}, float two = {2}> {
    a = Add (x, two) r = Relu (a) p = Pad (r, one) f = Reshape (p, whole) q = Pad (a, one) s = Add (f, q)
    y = Sub (s, two) }"""


def within(monkeypatch):
    """All values are reduced within the run."""
    monkeypatch.setattr(handed_out, "MOST", 0)


@pytest.mark.parametrize("shift", [-9, 0, 9])
def test_what_a_pad_gives_follows(shift, monkeypatch):
    """Zeros beside what it takes, behind a Relu and before a Reshape too; no node reduces it."""
    samples = [{"x": np.float32([-1, 3, 2]) * k + shift} for k in (1, 2, 3, 1)]
    outside = amp_rewrite.observe(model(PADDED), samples, device="cpu")
    within(monkeypatch)
    assert amp_rewrite.observe(model(PADDED), samples, device="cpu") == outside
    (a, s, y) = added(PADDED)
    assert (a.names, s.names, y.names) == (["a"], ["s"], ["y"])
    assert {each.name: (each.cut, each.padded) for each in a.followers} == {
        "r": (True, False),
        "p": (True, True),
        "f": (True, True),
        "q": (False, True),
    }


def added(text):
    """What is reduced in a model, of which each value is in float32."""
    proto = model(text)
    names = [name for node in proto.graph.node for name in node.output]
    types = [dict.fromkeys(names, 1)]
    return reductions.add(proto, types, proto.opset_import[0].version, lambda _: Treatment.REDUCED)


def test_a_pad_of_nothing_is_seen(monkeypatch):
    """Of an empty value the zeros alone, counted by themselves."""
    within(monkeypatch)
    samples = [{"x": np.zeros(size, np.float32)} for size in (1, 1, 0)]
    text = "g (float[N] x) => (float[M] y) <int64[2] one = {1, 0}> { a = Neg (x) y = Pad (a, one) }"
    seen = amp_rewrite.observe(model(text), samples, device="cpu")
    assert (seen["a"].samples, seen["y"].samples, seen["y"].counted) == (2, 3, 2 + 2 + 1)


PADS = {
    "zeros": ("y = Pad (x, one)", True),
    "a zero that is given": ("y = Pad (x, one, zero)", True),
    "another number": ("y = Pad (x, one, two)", False),
    "a number that a node computes": ("n = Neg (two) y = Pad (x, one, n)", False),
    "no element": ("y = Pad (x, none)", False),
    "it leaves elements out": ("y = Pad (x, less)", False),
    "amounts that a run is given": ("y = Pad (x, given)", False),
    "a mode": ('y = Pad <mode = "reflect"> (x, one)', False),
    "no Pad": ("y = Add (x, two)", False),
}


@pytest.mark.parametrize("case", PADS)
def test_which_pads_add_zeros(case):
    """Those of which the model stores that they add at least one, and leave out nothing."""
    text, adds = PADS[case]
    stored = "<int64[2] one = {1, 0}, int64[2] none = {0, 0}, int64[2] less = {1, -1}, float two = {2}, "
    proto = model(f"g (float[N] x, int64[2] given) => (float[M] y) {stored}float zero = {{0}}> {{ {text} }}")
    made = proto.graph.node[-1]
    assert followers.adds_zeros(made, 17, followers.stored(proto.graph)) == adds


@pytest.mark.parametrize(("value", "adds"), [(0.0, True), (1.0, False)])
def test_pads_of_old_opsets(value, adds):
    """Their amounts are attributes."""
    node = helper.make_node("Pad", ["x"], ["y"], pads=[1, 0], value=value)
    assert followers.adds_zeros(node, 10, {}) == adds


def test_ends_of_followers():
    """Cut below 0 and beside zeros, in either order."""
    assert Follower("a").ends(-2, -1) == (-2, -1)
    assert Follower("a", cut=True).ends(-2, 3) == (0, 3)
    assert Follower("a", padded=True).ends(1, 3) == (0, 3)
    assert Follower("a", padded=True).ends(-3, -1) == (-3, 0)
    assert Follower("a", cut=True, padded=True).ends(1, 3) == (0, 3)


# ---- NaN

SUMS = """g (float[N] x) => (float[N] y) <float big = {1e20}, float huge = {1e38}, float[1] two = {2}> {
    e = Exp (x) a = Mul (e, two) b = Mul (a, big) h = Mul (a, huge) c = Sub (b, b) r = Relu (c)
    i = Mul (a, x) y = Add (r, a) }"""


def test_what_cannot_be_nan():
    """What is computed of known values, and of what a model stores, if that is of a moderate size."""
    graph = model(SUMS).graph
    stored = followers.stored(graph)
    known = {name for node in graph.node for name in node.output}
    assert nan_free.values(graph, known.__contains__, stored) == {*"abcry"}
    assert nan_free.values(graph, (known - {"b"}).__contains__, stored) == {*"abry"}
    assert nan_free.values(graph, known.__contains__, {}) == {*"cry"}


@pytest.mark.parametrize("at", [2, 3, 4])
def test_nan_behind_what_does_not_fit_is_counted(at, monkeypatch):
    """No sum is needed while all fits float16; where b is infinite, c is seen to be NaN all the same."""
    samples = [{"x": np.full(64, -60, np.float32)} for _ in range(6)]
    samples[at]["x"][7] = 60
    within(monkeypatch)
    seen = amp_rewrite.observe(model(SUMS), samples, device="cpu")
    assert (seen["b"].not_finite, seen["c"].not_finite) == (1, 1)
    assert (seen["c"].low, seen["c"].high) == (0, 0)
    assert {slot.names[0]: slot.sums for slot in added(SUMS)}["c"] == 0


def test_a_root_is_summed_where_what_reads_it_is_not(monkeypatch):
    """A sum that cannot be NaN while its inputs are known is not what tells of a NaN in them."""
    text = "g (float[N] x) => (float[N] y) <float two = {2}> { a = Sqrt (x) y = Add (a, two) }"
    assert {slot.names[0]: slot.sums for slot in added(text)} == {"a": 1, "y": 0}
    samples = [{"x": np.arange(64, dtype=np.float32)} for _ in range(4)]
    samples[3]["x"][7] = -1
    within(monkeypatch)
    seen = amp_rewrite.observe(model(text), samples, device="cpu")
    assert (seen["a"].not_finite, seen["y"].not_finite, seen["a"].low) == (1, 1, 0)
