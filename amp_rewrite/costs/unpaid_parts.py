"""Parts of the half units that cost more in Casts than they save: the largest saving remains without them.

    Softmax -> Add -> Softmax        an Add between float32 nodes: two Casts cost more than it saves

Which units to revert to float32 is a minimum cut: each unit saves time in half, each Cast between two colours
costs some, and so does each fusion that a border breaks. No search among islands finds a better choice, and
pinning more units to float32 reverts no decision: of two sets of candidates, the smaller one leaves a subset
of what the larger one leaves, as these costs are submodular (D. M. Topkis: Minimizing a submodular function
on a lattice, Operations Research 26, 1978).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs import fusions
from amp_rewrite.costs.model_costs import Border, ModelCosts
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

# The smallest part of a network that a minimum cut leaves on the side of the sink, by augmenting paths (L. R.
# Ford, D. R. Fulkerson: Maximal flow through a network, Canad. J. Math. 8, 1956): each demand draws on the
# nearest supplies that can reach it. All that could reach an uncovered one is cut off.

UNLIMITED = 1 << 120
"""Capacity that exceeds any sum of costs."""

_WORK = 64
"""Visits for each node and edge after which the search ends; what was cut off until then remains so."""


class Network:
    """Nodes with a supply and a demand each, and edges between them."""

    def __init__(self) -> None:
        self.supply, self.demand = Counter[Hashable](), Counter[Hashable]()
        self._room: defaultdict[Hashable, dict[Hashable, int]] = defaultdict(dict)  # by end, then start

    def edge(self, start: Hashable, end: Hashable, capacity: int) -> None:
        """Add capacity from one node to another."""
        self._room[end][start] = self._room[end].get(start, 0) + capacity
        self._room[start].setdefault(end, 0)

    def cut_off(self) -> set[Hashable]:
        """Return the nodes whose demand exceeds all supplies that can reach them; called once."""
        cut: set[Hashable] = set()
        work = _WORK * (len(self.demand) + sum(map(len, self._room.values())))
        for node in self.demand:
            while self.demand[node] and node not in cut and work > 0:
                giver, taker = self._nearest_supply(node, cut)
                work -= len(taker)
                if giver is None:
                    cut.update(taker)
                else:
                    self._draw(node, giver, taker)
        return cut

    def _nearest_supply(
        self, node: Hashable, cut: set[Hashable]
    ) -> tuple[Hashable | None, dict[Hashable, Hashable]]:
        """Return a node with a supply for this one, if any; and all nodes visited, each with the next one."""
        taker, visited = {node: node}, [node]
        for here in visited:
            if self.supply[here]:
                return here, taker
            for giver, room in self._room[here].items():
                if room and giver not in taker and giver not in cut:
                    taker[giver] = here
                    visited.append(giver)
        return None, taker

    def _draw(self, node: Hashable, giver: Hashable, taker: dict[Hashable, Hashable]) -> None:
        """Cover a demand from a supply, as far as that and the edges between them last."""
        path, here = [], giver
        while here != node:
            path.append((here, taker[here]))
            here = taker[here]
        rooms = [self._room[end][start] for start, end in path]
        amount = min(self.demand[node], self.supply[giver], *rooms)
        self.demand[node] -= amount
        self.supply[giver] -= amount
        for start, end in path:
            self._room[end][start] -= amount
            self._room[start][end] += amount


# Half units as a network.

Price = tuple[Iterable[int], int]
"""Units, and the cost if any of them is half; less than 0 for the benefit of a unit by itself."""


class _Term(NamedTuple):
    """A cost where some are half and some are not: of these units, and of others of a fixed type."""

    units: Sequence[int]
    cost: int
    casts: int = 0
    full: bool = False
    half: bool = False


def _terms(costs: ModelCosts, borders: Iterable[Border]) -> Iterator[_Term]:
    """Yield the cost of each Cast, and of a border in each fusion: a launch, and a value written and read."""
    for border in borders:
        yield _Term(border.units, costs.cast(border.value, costs.large), 1, border.full, border.half)
    for fusion in costs.fusions:
        apart = costs.broken(fusion, costs.large) + costs.launch(fusion)
        yield _Term((fusion.producer, fusion.consumer), apart)


def _gains(costs: ModelCosts) -> Iterator[tuple[int, int]]:
    """Yield units with the time that a kernel saves with each in half."""
    for kernel in costs.kernels:
        for at, unit in enumerate(kernel.units):
            yield unit, costs.gain(kernel, at, costs.large)


def find_unpaid_parts(
    graph: UnitGraph,
    costs: ModelCosts,
    borders: Iterable[Border],
    halves: Sequence[bool],
    pinned: Collection[int],
    prices: Iterable[Price] = (),
) -> frozenset[int]:
    """Return the units to revert to float32, of those in `halves` that are not `pinned`; whole ties only.

    `prices` are further costs of units in half, in femtoseconds. Casts of the model are not among the units:
    they follow their neighbours. Linear in units and edges (Network.cut_off).
    """
    network = Network()
    alone = [(unit, -price) for units, price in prices if price < 0 for unit in units]
    for unit, gain in (*_gains(costs), *((unit, UNLIMITED) for unit in pinned), *alone):
        if halves[unit]:
            (network.supply if gain > 0 else network.demand)[unit] += abs(gain)
    for unit, other in fusions.fused_pairs(graph):  # the first may be half only where the second is
        if halves[unit] and halves[other]:
            network.edge(unit, other, UNLIMITED)
    tied = (_Term([u for u in tie if halves[u]], UNLIMITED) for tie in graph.ties)
    priced = (
        _Term([u for u in units if halves[u]], price, full=True) for units, price in prices if price > 0
    )
    for number, term in enumerate((*_terms(costs, borders), *tied, *priced)):
        _add(network, number, term, halves)
    return frozenset(node for node in network.cut_off() if isinstance(node, int))


def _add(network: Network, number: int, term: _Term, halves: Sequence[bool]) -> None:
    """Add a term, with a node that is half where any unit is, and one that is half only where all are."""
    units = [unit for unit in term.units if halves[unit]]
    full = term.full or len(units) < len(term.units)
    if not units or (full and term.half):
        return
    if not full and not term.half and len(units) <= 2:  # the same with fewer nodes
        for start, end in itertools.permutations(units, 2):
            network.edge(start, end, term.cost)
        return
    some, every = ("some", number), ("every", number)
    for unit in units:
        network.edge(unit, some, UNLIMITED)
        network.edge(every, unit, UNLIMITED)
    if full:
        network.demand[some] += term.cost
    elif term.half:
        network.supply[every] += term.cost
    else:
        network.edge(some, every, term.cost)


def find_islands(
    graph: UnitGraph,
    costs: ModelCosts,
    borders: Iterable[Border],
    halves: Sequence[bool],
    unpaid: Collection[int],
) -> Mapping[int, Evidence]:
    """Return the reason of each of the `unpaid` units: the nodes of its connected part, the Casts that it
    would add in half, and the ratio of their price to what it would save; None where it would save nothing.
    """
    parts = _parts(graph, unpaid)
    casts, cost, gain = Counter[int](), Counter[int](), Counter[int]()
    for term in _terms(costs, borders):
        within = Counter(parts[unit] for unit in term.units if unit in parts)
        half = term.half + sum(halves[unit] and unit not in parts for unit in term.units if within)
        size = term.half + term.full + len(term.units)
        for part, more in within.items():  # added Casts less removed ones
            change = (0 < half + more < size) - (0 < half < size)
            casts[part] += change * term.casts
            cost[part] += change * term.cost
    for unit, saved in _gains(costs):
        if unit in parts:
            gain[parts[unit]] += saved
    nodes = Counter(part for _, part in {(graph.units[unit].node, part) for unit, part in parts.items()})

    def reason(part: int) -> Evidence:
        times = round(cost[part] / gain[part], 2) if gain[part] > 0 else None
        return Evidence(
            Authority.PREDICTION,
            Reason.UNPROFITABLE,
            subject=costs.device.name,
            number=times,
            nodes=nodes[part],
            casts=max(casts[part], 0),
        )

    reasons = {part: reason(part) for part in nodes}
    return {unit: reasons[part] for unit, part in parts.items()}


def _parts(graph: UnitGraph, units: Collection[int]) -> dict[int, int]:
    """Return one unit for each of these, the same for those that are connected."""
    parts: dict[int, int] = {}
    ties = {unit: tie for tie in graph.ties for unit in tie}

    def beside(unit: int) -> Iterable[int]:
        return (*graph.predecessors[unit], *graph.successors[unit], *ties.get(unit, ()))

    for unit in units:
        if unit not in parts:
            parts.update(dict.fromkeys((unit, *reach([unit], beside, units.__contains__)), unit))
    return parts
