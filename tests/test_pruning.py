"""The rule `prune`: parts that cost more in Casts than they save; `pruning.cases` has what is pruned."""

import itertools
from dataclasses import replace

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from amp_rewrite.colouring.painting import Rule
from amp_rewrite.costs import model_costs, unpaid_parts
from amp_rewrite.explaining.sentences import first_step
from amp_rewrite.pipeline import analyze, rewrite
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rewriting import plan_files
from tests import text
from tests.random_models import models

STATE = """g (float[2, 64, 256] x, float[2, 256, 16] s)
  => (float[2, 64, 256] y, float[2, 256, 16] n) <float[256, 256] w, float[16, 1] c> {
  [product] h = MatMul(x, w) [again] y = MatMul(h, w) [decay] d = Exp(s) [read] r = MatMul(d, c)
  [next] n = Pow(d, r) }"""
"""Two products that pay, and a product of a matrix and a vector that float32 feeds and reads, as in Mamba."""


@pytest.fixture
def state():
    """The model of that text."""
    return onnx.shape_inference.infer_shapes(text.model(STATE))


def half(analysis):
    """The names of the nodes that are half."""
    return {decision.node for decision in analysis.decisions().all if decision.is_half}


def test_it_says_so(state):
    """`explain` has the nodes, the Casts and the price, and groups what is pruned."""
    analysis = analyze(state)
    decisions = analysis.decisions()
    (unit,) = (unit for unit, decision in enumerate(decisions.all) if decision.node == "read")
    step = first_step(decisions, unit)
    assert step.rule is Rule.PRUNE
    told = "stays float32: an unprofitable region of 1 node, 2 Casts, predicted to cost "
    assert step.reason.startswith(told)
    assert step.reason.endswith(" times what it saves on h200")
    (cause,) = (cause for cause in analysis.causes() if cause.first.rule is Rule.PRUNE)
    assert cause.suggestion.why == "nothing to gain, as predicted"


GRAPPLERS = Options(lists="tensorflow", follow=False)


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
        found_time = model_costs.run_time(costs, found.borders, left, costs.large)
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
    """Two parts that nothing connects have a price each. Base and exponent of a Pow may have two types: as
    two parts, each of one node.
    """
    analysis = analyze(state, GRAPPLERS)
    graph = analysis.graph
    found = model_costs.measure_prices(graph, Options())
    names = [unit.node.name for unit in graph.units]
    gone = {names.index("product"), names.index("read")}
    left = [analysis.painting.is_half(unit.index) and unit.index not in gone for unit in graph.units]
    parts = unpaid_parts.find_islands(graph, found.costs, found.borders, left, gone)
    assert {names[unit]: island.nodes for unit, island in parts.items()} == {"product": 1, "read": 1}
    assert parts[names.index("product")].number < 1 < parts[names.index("read")].number
    power = {unit for unit, name in enumerate(names) if name == "next"}
    parts = unpaid_parts.find_islands(graph, found.costs, found.borders, [False] * len(names), power)
    assert [island.nodes for island in parts.values()] == [1, 1]
