"""The rule `prune`: parts of what is half that cost more in Casts than they save."""

import itertools
from dataclasses import replace

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from amp_rewrite.colouring.painting import Rule
from amp_rewrite.costs import model_costs, unpaid_parts
from amp_rewrite.explaining.sentences import first_step
from amp_rewrite.pipeline import analyze, rewrite
from amp_rewrite.policy.operator_lists import Kind, load
from amp_rewrite.policy.options import Level, Options, Pins
from amp_rewrite.rewriting import plan_files
from tests import text
from tests.random_models import models

STATE = """g (float[2, 64, 256] x, float[2, 256, 16] s)
  => (float[2, 64, 256] y, float[2, 256, 16] n) <float[256, 256] w, float[16, 1] c> {
  [product] h = MatMul(x, w)
  [again] y = MatMul(h, w)
  [decay] d = Exp(s)
  [read] r = MatMul(d, c)
  [next] n = Pow(d, r)
}"""
"""Two products that pay, and a product of a matrix and a vector that float32 feeds and reads, as in Mamba."""


@pytest.fixture
def state():
    """The model of that text."""
    return shaped(STATE)


def shaped(written):
    """The model of a text, with the shapes of all its values."""
    return onnx.shape_inference.infer_shapes(text.model(written))


def half(analysis):
    """The names of the nodes that are half."""
    return {decision.node for decision in analysis.decisions().all if decision.is_half}


def test_a_product_of_float32_state_does_not_pay_two_casts(state):
    """Fed and read by float32 alone, it moves as much as its Casts do; other products pay for theirs."""
    analysis = analyze(state)
    assert half(analysis) == {"product", "again"}
    assert len(analysis.plan.casts) == 2


BRANCHES = """g (float[2, 64, 256] s, bool c) => (float[n, m, 256] y)
  <float[256, 256] w, int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}> {
  h = Gather(s, zero)
  k = Gather(s, one)
  a, b = If(c) <
    then_branch = t () => (th, tk) { th = Unsqueeze(h, axis)  tk = Unsqueeze(k, axis) },
    else_branch = e () => (eh, ek) { eh = Identity(h)  ek = Identity(k) }>
  p = MatMul(a, w)
  q = MatMul(b, w)
  y = Add(p, q)
}"""
"""What an If returns has no rank, as in recurrent cells that PyTorch scripted."""


ANONYMOUS = """g (float[?, 64] s, bool c) => (float[?, ?, ?] y)
  <float[64, 64] w, float[64, 64] v, int64[1] axis = {0}> {
  i = If(c) <
    then_branch = t () => (float[?, ?, ?] tu) { p = MatMul(s, w)  tr = Relu(p)  tu = Unsqueeze(tr, axis) },
    else_branch = e () => (float[?, ?, ?] eu) { q = MatMul(s, v)  er = Relu(q)  eu = Unsqueeze(er, axis) }>
  y = Identity(i)
}"""
"""Its results have three dimensions without a name, and as many elements as before the Unsqueeze."""


@pytest.mark.parametrize("written", [shaped(BRANCHES), text.model(ANONYMOUS)], ids=["branches", "anonymous"])
def test_what_an_if_returns_is_as_large_as_in_its_branches(written):
    """One Cast of the state before it, and one of the output, are cheaper than two within or behind it."""
    casts = analyze(written).plan.casts
    assert sorted(cast.value.name for cast in casts) == ["s", "y"]


def test_it_says_so(state):
    """`explain` has the nodes, the Casts and the price, and groups what is pruned."""
    analysis = analyze(state)
    decisions = analysis.decisions()
    (unit,) = (unit for unit, decision in enumerate(decisions.all) if decision.node == "read")
    step = first_step(decisions, unit)
    assert step.rule is Rule.PRUNE
    told = "stays float32: an island of 1 node, 2 Casts, predicted to cost "
    assert step.reason.startswith(told)
    assert step.reason.endswith(" times what it saves on h200")
    (cause,) = (cause for cause in analysis.causes() if cause.first.rule is Rule.PRUNE)
    assert cause.suggestion.why == "nothing to gain, as predicted"


GRAPPLERS = Options(lists=load("tensorflow"), follow=False)
KEEPING = [
    Options(pins=Pins(force_half="read")),
    Options(lists=load("default").override(Kind.ALLOW, ["MatMul"])),
    Options(level=Level.UNSAFE_FORCE_ALL),
    GRAPPLERS,
]


@pytest.mark.parametrize("asked", KEEPING, ids=["a pin", "an override", "all is forced", "Grappler's lists"])
def test_what_is_not_pruned(state, asked):
    """A pin, an override, the level that forces all, and Grappler's rules have the last word."""
    assert "read" in half(analyze(state, asked))


def test_a_model_that_does_not_pay_at_all_is_half_all_the_same(state):
    """Pruning takes parts of a model, and never all of it."""
    assert half(analyze(state, Options(pins=Pins(keep_full=("product", "again"))))) == {"read"}


EMBEDDED = """g (int64[2, 64] ids, int64[2, 64] places) => (float[2, 256, 64] y)
  <float[64] one, float[999, 256] words, float[64, 256] positions, float[256] s, float[256, 256] w> {
  [word] a = Gather(words, ids)
  [position] b = Gather(positions, places)
  [sum] c = Add(a, b)
  [norm] d = LayerNormalization(c, s)
  [shape] e = Shape(d)
  [product] f = MatMul(d, w)
  [flat] g = Reshape(f, e)
  [norm_2] h = LayerNormalization(g, s)
  [moved] i = Transpose<perm=[0, 2, 1]>(h)
  [norm_3] j = LayerNormalization(i, one)
  [again] y = MatMul(w, j)
}"""
"""An embedding in half for the norm that reads it, and what moves data from one norm to another."""


def test_a_pin_keeps_what_it_names():
    """What pins cut off stays half, embeddings too, as it is half without them, whatever the Casts cost.

    What only moves or measures data of pinned nodes takes their type.
    """
    model = shaped(EMBEDDED)
    norms = ("norm", "norm_2", "norm_3")
    unpinned = half(analyze(model))
    assert {"word", "position", "sum", *norms} <= unpinned
    pinned = analyze(model, Options(pins=Pins(keep_full=norms)))
    assert unpinned - half(pinned) == {*norms, "shape", "moved"}
    assert half(pinned) <= unpinned
    again = pinned.painted(replace(pinned.options, pins=Pins(keep_full=norms)))
    assert again == pinned.painting


def test_a_saved_plan_is_carried_out_as_it_is(state, tmp_path):
    """What was pruned stays float32, with its reason; what is half in the plan becomes half, paid or not."""
    analysis = analyze(state)
    dumped = plan_files.dump(analysis.saved_plan())
    (tmp_path / "plan.json").write_text(dumped)
    again = analyze(state, replay=plan_files.load(tmp_path / "plan.json"))
    assert again.painting == analysis.painting
    edited = dumped.replace('"full",\n   "rule": "prune"', '"half",\n   "rule": "prune"')
    (tmp_path / "plan.json").write_text(edited)
    assert "read" in half(analyze(state, replay=plan_files.load(tmp_path / "plan.json")))


def test_twice_is_once(state):
    """The Casts that pruning leaves do not make the pruned part worth it the second time."""
    once = rewrite(state).model
    assert rewrite(once).model == once


LOOP = """g (float[2, 64, 256] x, float[2, 256, 16] s, int64 n, bool go)
  => (float[2, 64, 256] y, float[2, 256, 16] o) <float[256, 256] w, float[16, 1] c> {
  [product] y = MatMul(x, w)
  o = Loop(n, go, s) <body = b (int64 i, bool on, float[2, 256, 16] t) => (bool on2, float[2, 256, 16] t2) {
    on2 = Identity(on)
    [decay] d = Exp(t)
    [read] r = MatMul(d, c)
    [next] t2 = Mul(d, r)
  }>
}"""


def test_a_body_counts_as_often_as_it_runs():
    """Casts within a loop are paid for in each of its runs."""
    analysis = analyze(shaped(LOOP))
    assert half(analysis) == {"product"}


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(models())
def test_no_choice_is_better(model):
    """Of all choices of units to take from half, the one that is made has the least predicted time, and takes
    the fewest units of those.
    """
    analysis = analyze(model, Options(level=Level.UNSAFE_FORCE_ALL))
    graph = analysis.graph
    halves = [analysis.painting.is_half(unit.index) for unit in graph.units]
    free = [unit for unit, is_half in enumerate(halves) if is_half][:7]
    found = model_costs.measure_prices(graph, Options())
    costs = replace(found.costs, device=replace(found.costs.device, launch=found.costs.device.launch * 4))

    def time(taken):
        left = [is_half and unit not in taken for unit, is_half in enumerate(halves)]
        (found_time,) = model_costs.run_times(costs, found.borders, [left], costs.large)
        return round(found_time.seconds * 1e15)

    kept = set(range(len(halves))) - set(free)
    taken = unpaid_parts.find_unpaid_parts(graph, costs, found.borders, halves, kept)
    choices = (set(some) for count in range(len(free) + 1) for some in itertools.combinations(free, count))
    consistent = (some for some in choices if not _breaks(graph, halves, some))
    assert time(taken) <= min(map(time, consistent)) + len(free)


def _breaks(graph, halves, taken):
    """Whether units that are tied would have two colours."""
    return any(len({halves[unit] and unit not in taken for unit in tie}) > 1 for tie in graph.ties)


def test_islands_are_connected_parts(state):
    """Two parts that nothing connects have a price each."""
    analysis = analyze(state, GRAPPLERS)
    graph = analysis.graph
    found = model_costs.measure_prices(graph, Options())
    names = [unit.node.name for unit in graph.units]
    gone = {names.index("product"), names.index("read")}
    left = [analysis.painting.is_half(unit.index) and unit.index not in gone for unit in graph.units]
    parts = unpaid_parts.find_islands(graph, found.costs, found.borders, left, gone)
    assert {names[unit]: island.nodes for unit, island in parts.items()} == {"product": 1, "read": 1}
    assert parts[names.index("product")].number < 1 < parts[names.index("read")].number


def test_a_node_in_two_islands_counts_in_both(state):
    """Base and exponent of a Pow may have two types: as two parts, each of one node."""
    graph = analyze(state, GRAPPLERS).graph
    found = model_costs.measure_prices(graph, Options())
    power = {unit.index for unit in graph.units if unit.node.name == "next"}
    parts = unpaid_parts.find_islands(graph, found.costs, found.borders, [False] * len(graph.units), power)
    assert [island.nodes for island in parts.values()] == [1, 1]
