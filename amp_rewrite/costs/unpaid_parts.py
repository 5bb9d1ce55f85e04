"""Parts of the half units that cost more in Casts than they save: the largest saving remains without them.

Which units to revert to float32 is a minimum cut: each unit saves time in half, each Cast between two colours
costs some, and so does each fusion that a border breaks. No search among islands finds a better choice, and
pinning more units to float32 reverts no decision: of two sets of candidates, the smaller one leaves a subset
of what the larger one leaves, as these costs are submodular (D. M. Topkis: Minimizing a submodular function
on a lattice, Operations Research 26, 1978).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs import fusions
from amp_rewrite.costs.minimum_cut import UNLIMITED, Network
from amp_rewrite.costs.model_costs import Border, ModelCosts

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
    """Yield the cost of the Cast of each value, and of a border inside of each fusion: its launch, and a value
    that is written and read.
    """
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

    `prices` are further costs of units in half, in femtoseconds: each where any of its units is half. Casts
    of the model are not among the units: they follow their neighbours. Linear in units and edges
    (minimum_cut).
    """
    network = _UnitNetwork(graph, halves)
    for unit, gain in (*_gains(costs), *((unit, UNLIMITED) for unit in pinned)):
        network.add_gain(unit, gain)
    for units, price in prices:
        for unit in units if price < 0 else ():
            network.add_gain(unit, -price)
        network.add(_Term([unit for unit in units if halves[unit]], max(price, 0), full=True))
    for term in _terms(costs, borders):
        network.add(term)
    return network.unpaid()


class _UnitNetwork:
    """A node for each half unit, or for all that are tied, and some for terms of several units."""

    def __init__(self, graph: UnitGraph, halves: Sequence[bool]) -> None:
        self._network = Network()
        first = _connected(graph.ties)
        groups = {unit: first.get(unit, unit) for unit, is_half in enumerate(halves) if is_half}
        nodes = {group: self._network.node() for group in dict.fromkeys(groups.values())}
        self._node = {unit: nodes[group] for unit, group in groups.items()}
        for unit, other in fusions.fused_pairs(graph):  # a unit that may be half only where the other is
            if unit in self._node and other in self._node:
                self._network.edge(self._node[unit], self._node[other], UNLIMITED)

    def add_gain(self, unit: int, gain: int) -> None:
        if unit in self._node:
            (self._network.supply if gain > 0 else self._network.demand)[self._node[unit]] += abs(gain)

    def add(self, term: _Term) -> None:
        nodes = {self._node[unit]: None for unit in term.units if unit in self._node}
        full = term.full or any(unit not in self._node for unit in term.units)
        if not nodes or (full and term.half):
            return
        if full:
            self._network.demand[self._any_of(nodes)] += term.cost
        elif term.half:
            self._network.supply[self._all_of(nodes)] += term.cost
        elif len(nodes) > 1:
            self._network.edge(self._any_of(nodes), self._all_of(nodes), term.cost)

    def _any_of(self, nodes: Collection[int]) -> int:
        """Return a node that is half where any of these is."""
        if len(nodes) == 1:
            return next(iter(nodes))
        shared = self._network.node()
        for node in nodes:
            self._network.edge(node, shared, UNLIMITED)
        return shared

    def _all_of(self, nodes: Collection[int]) -> int:
        """Return a node that is half only where all of these are."""
        if len(nodes) == 1:
            return next(iter(nodes))
        shared = self._network.node()
        for node in nodes:
            self._network.edge(shared, node, UNLIMITED)
        return shared

    def unpaid(self) -> frozenset[int]:
        """Return the units that are cheaper in float32."""
        cut = self._network.cut_off()
        return frozenset(unit for unit, node in self._node.items() if node in cut)


@dataclass(frozen=True, slots=True)
class Island:
    """A connected part that was reverted to float32: its nodes, and the additional Casts if it were half.

    `times` is the predicted ratio of its cost to its saving; None where it saves nothing.
    """

    nodes: int
    casts: int
    times: float | None


def find_islands(
    graph: UnitGraph,
    costs: ModelCosts,
    borders: Iterable[Border],
    in_half: Sequence[bool],
    reverted_units: Collection[int],
) -> Mapping[int, Island]:
    """Return the island of each of the `reverted_units`; `in_half` are the colours without them.

    Linear in units, edges and kernels.
    """
    edges = [(unit, *filter(reverted_units.__contains__, graph.successors[unit])) for unit in reverted_units]
    parts = _connected((*edges, *(tie for tie in graph.ties if tie[0] in reverted_units)))
    casts, cost, gain = Counter[int](), Counter[int](), Counter[int]()
    for term in _terms(costs, borders):
        within = Counter(parts[unit] for unit in term.units if unit in parts)
        half = term.half + sum(in_half[unit] for unit in term.units) if within else 0
        size = term.half + term.full + len(term.units)
        for part, more in within.items():  # added Casts less removed ones
            change = (0 < half + more < size) - (0 < half < size)
            casts[part] += change * term.casts
            cost[part] += change * term.cost
    for unit, saved in _gains(costs):
        if unit in parts:
            gain[parts[unit]] += saved
    nodes = Counter({graph.units[unit].node: part for unit, part in parts.items()}.values())
    times = {part: round(cost[part] / gain[part], 2) if gain[part] > 0 else None for part in nodes}
    islands = {part: Island(nodes[part], max(casts[part], 0), times[part]) for part in nodes}
    return {unit: islands[part] for unit, part in parts.items()}


def _connected(edges: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Return a representative of each unit of these edges, the same for all that they connect."""
    first: dict[int, int] = {}

    def root(unit: int) -> int:
        while first.setdefault(unit, unit) != unit:
            first[unit] = first[first[unit]]
            unit = first[unit]
        return unit

    for edge in edges:
        for unit in edge:
            first[root(unit)] = root(edge[0])
    return {unit: root(unit) for unit in list(first)}
