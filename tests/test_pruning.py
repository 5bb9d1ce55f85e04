"""The rule `prune`: parts that cost more in Casts than they save; `pruning.cases` has what is pruned."""

import itertools
import random
from dataclasses import replace

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from amp_rewrite.colouring.painting import Rule
from amp_rewrite.costs import model_costs, unpaid_parts
from amp_rewrite.costs.unpaid_parts import UNLIMITED, Network
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


# ---- the minimum cut against every cut of small networks


def drawn(seed):
    """Supplies, demands and edges of a small network."""
    chance = random.Random(seed)
    size = chance.randint(1, 7)
    supplies = [chance.randint(0, 6) for _ in range(size)]
    demands = [chance.choice((0, 0, chance.randint(0, 9))) for _ in range(size)]
    pairs = itertools.permutations(range(size), 2)
    edges = [(*pair, chance.randint(0, 5), chance.choice((0, 3, UNLIMITED))) for pair in pairs]
    return supplies, demands, [edge for edge in edges if chance.random() < 0.3]


def network(supplies, demands, edges):
    """The same as a Network."""
    made = Network()
    made.supply.update(dict(enumerate(supplies)))
    made.demand.update(dict(enumerate(demands)))
    for start, end, forth, back in edges:
        made.edge(start, end, forth)
        made.edge(end, start, back)
    return made


def price(left, supplies, demands, edges):
    """What a cut costs that leaves these nodes on the side of the supplies."""
    total = sum(demands[node] if node in left else supply for node, supply in enumerate(supplies))
    for start, end, forth, back in edges:
        total += forth * (start in left and end not in left) + back * (end in left and start not in left)
    return total


@pytest.mark.parametrize("seed", range(300))
def test_the_smallest_part_of_a_minimum_cut_is_cut_off(seed):
    """Of all cheapest cuts, that which leaves most; ties leave all, in whatever order nodes and edges are."""
    given = drawn(seed)
    nodes = range(len(given[0]))
    cuts = [set(cut) for count in range(len(nodes) + 1) for cut in itertools.combinations(nodes, count)]
    least = min(price(cut, *given) for cut in cuts)
    most = max((cut for cut in cuts if price(cut, *given) == least), key=len)
    assert set(nodes) - network(*given).cut_off() == most
    supplies, demands, edges = given
    turned = [(len(nodes) - 1 - a, len(nodes) - 1 - b, forth, back) for a, b, forth, back in reversed(edges)]
    found = network(supplies[::-1], demands[::-1], turned).cut_off()
    assert {len(nodes) - 1 - node for node in found} == set(nodes) - most


def chain(length):
    """A chain that lets one through, with a supply of three at one end, and a demand of two at each node."""
    return network([3] + [0] * (length - 1), [2] * length, [(i, i + 1, 1, 1) for i in range(length - 1)])


def test_a_long_chain_takes_linear_work(monkeypatch):
    """What is cut off once is not visited again."""
    visited = []
    search = Network._nearest_supply

    def watched(*given):
        found = search(*given)
        visited.append(len(found[1]))
        return found

    monkeypatch.setattr(Network, "_nearest_supply", watched)
    for length in (1000, 4000):
        assert len(chain(length).cut_off()) == length - 1
    assert sum(visited) < 3 * 5000


def test_where_the_work_would_grow_beyond_the_rest_stays(monkeypatch):
    """The search ends after a bounded number of visits, and what it does not know is not cut off."""
    monkeypatch.setattr(unpaid_parts, "_WORK", 0)
    assert chain(10).cut_off() == set()
