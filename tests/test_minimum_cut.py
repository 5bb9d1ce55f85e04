"""The minimum cut against every cut of small networks."""

import itertools
import random

import pytest

from amp_rewrite.costs import unpaid_parts
from amp_rewrite.costs.unpaid_parts import UNLIMITED, Network


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
