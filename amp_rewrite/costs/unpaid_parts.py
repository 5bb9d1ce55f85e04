"""Parts of the half units that cost more in Casts than they save: the largest saving remains without them.

Which units to revert to float32 is a minimum cut: each unit saves time in half, each Cast between two colours
costs some, and so does each fusion that a border breaks. No search among islands finds a better choice, and
pinning more units to float32 reverts no decision: of two sets of candidates, the smaller one leaves a subset
of what the larger one leaves, as these costs are submodular (D. M. Topkis: Minimizing a submodular function
on a lattice, Operations Research 26, 1978).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs import fusions
from amp_rewrite.costs.minimum_cut import UNLIMITED, Network
from amp_rewrite.costs.model_costs import Border, Made, ModelCosts

# Units reverted to float32, in connected parts: each with the Casts that it would need, and their price.


@dataclass(frozen=True, slots=True)
class Island:
    """A connected part: its nodes, and the additional Casts if it were half.

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
    parts = _parts(graph, reverted_units)
    casts, cost, gain = Counter[int](), Counter[int](), Counter[int]()
    for border in borders:  # added Casts less removed ones
        for part, more in _casts(border, in_half, parts):
            casts[part] += more
            cost[part] += more * costs.cast(border.value, costs.large)
    for part, price in _broken_fusions(costs, in_half, parts):
        cost[part] += price
    for kernel in costs.kernels:
        for at, unit in enumerate(kernel.units):
            if unit in parts:
                gain[parts[unit]] += costs.gain(kernel, at, costs.large)
    nodes = Counter({graph.units[unit].node: part for unit, part in parts.items()}.values())
    times = {part: round(cost[part] / gain[part], 2) if gain[part] > 0 else None for part in parts.values()}
    islands = {part: Island(nodes[part], max(casts[part], 0), times[part]) for part in times}
    return {unit: islands[part] for unit, part in parts.items()}


def _parts(graph: UnitGraph, reverted_units: Collection[int]) -> dict[int, int]:
    """Return a number for each of these units, the same for connected ones: the lowest of them."""
    tie_edges: dict[int, list[int]] = {}
    for group in graph.ties:
        for unit in group if any(unit in reverted_units for unit in group[:1]) else ():
            tie_edges.setdefault(unit, []).extend(group[:1] if unit != group[0] else group)

    def beside(unit: int) -> Iterator[int]:
        yield from graph.predecessors[unit]
        yield from graph.successors[unit]
        yield from tie_edges.get(unit, ())

    parts: dict[int, int] = {}
    for unit in sorted(reverted_units):
        if unit not in parts:
            component = reach([unit], beside, lambda other: other in reverted_units and other not in parts)
            parts.update(dict.fromkeys((unit, *component), unit))
    return parts


def _broken_fusions(
    costs: ModelCosts, in_half: Sequence[bool], parts: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield the price of each fusion that a part would break; less than 0 for one that it would restore."""
    for fusion in costs.fusions:
        price = costs.broken(fusion, costs.large) + costs.launch(fusion)
        for unit, other in itertools.permutations((fusion.producer, fusion.consumer)):
            part = parts.get(unit)
            if part is not None and parts.get(other) != part:
                yield part, -price if in_half[other] else price


def _casts(border: Border, in_half: Sequence[bool], parts: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield for each part at this border the Casts that it would add if it were half."""
    within = Counter(parts[unit] for unit in border.readers if unit in parts)
    own = None if border.producer is None else parts.get(border.producer)
    if own is None and not within:
        return
    halves = sum([in_half[unit] for unit in border.readers])
    fulls = len(border.readers) - halves
    is_half = border.made is Made.HALF if border.producer is None else in_half[border.producer]
    before = _is_cast(border, is_half, halves, fulls)
    touched = set(within) if own is None else {own, *within}
    for part in sorted(touched):
        more = within[part]
        after = _is_cast(border, is_half or part == own, halves + more, fulls - more)
        if after != before:
            yield part, int(after) - int(before)


def _is_cast(border: Border, is_half: bool, halves: int, fulls: int) -> bool:
    return (border.full or fulls > 0) if is_half else (border.half or halves > 0)


Price = tuple[Iterable[int], int]
"""Units, and the cost if any of them is half."""


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
    if not any(halves):
        return frozenset()
    network = _UnitNetwork(graph, costs, halves)
    network.add_gains(pinned)
    for units, price in prices:
        network.add_price(units, price)
    for border in borders:
        network.add_border(border)
    network.add_fusions()
    network.add_types()
    return network.unpaid()


class _UnitNetwork:
    """A node for each half unit, or for all that are tied, and some for borders with several readers."""

    def __init__(self, graph: UnitGraph, costs: ModelCosts, halves: Sequence[bool]) -> None:
        self._graph, self._costs, self._halves = graph, costs, halves
        self._network = Network()
        self._node: dict[int, int] = {}
        representatives = _representatives(graph.ties)
        for unit, is_half in enumerate(halves):
            if is_half:
                first = representatives.get(unit, unit)
                if first not in self._node:
                    self._node[first] = self._network.node()
                self._node[unit] = self._node[first]

    def add_gains(self, pinned: Collection[int]) -> None:
        """Add the saving of each unit in half, unlimited for those that must not be reverted."""
        for kernel in self._costs.kernels:
            for at, unit in enumerate(kernel.units):
                if self._halves[unit]:
                    self._gain(unit, self._costs.gain(kernel, at, self._costs.large))
        for unit in pinned:
            if unit in self._node:
                self._network.supply[self._node[unit]] += UNLIMITED

    def add_price(self, units: Iterable[int], price: int) -> None:
        """Add the price of any of these units being half; less than 0 for the benefit of a unit by itself."""
        nodes = dict.fromkeys(self._node[unit] for unit in units if unit in self._node)
        if nodes and price > 0:
            self._network.demand[self._shared(nodes, goes_out=False)] += price
        for node in nodes if price < 0 else ():
            self._network.supply[node] -= price

    def _gain(self, unit: int, amount: int) -> None:
        if amount > 0:
            self._network.supply[self._node[unit]] += amount
        else:
            self._network.demand[self._node[unit]] -= amount

    def add_border(self, border: Border) -> None:
        """Add the costs of the Casts of a value, for any colours of the units at it."""
        readers = dict.fromkeys(self._node[unit] for unit in border.readers if self._halves[unit])
        full = border.full or not all(self._halves[unit] for unit in border.readers)
        producer = None if border.producer is None else self._node.get(border.producer)
        if producer is None and not readers:
            return
        cost = self._costs.cast(border.value, self._costs.large)
        if producer is not None:
            readers.pop(producer, None)
            self._between(producer, tuple(readers), cost, full=full, half=border.half)
        elif border.made is Made.HALF:
            if not full:
                self._network.supply[self._shared(readers, goes_out=True)] += cost
        elif not border.half:
            self._network.demand[self._shared(readers, goes_out=False)] += cost

    def _between(self, producer: int, readers: tuple[int, ...], cost: int, *, full: bool, half: bool) -> None:
        """Add a border of a unit and readers that may be half; `full` and `half` are the other readers."""
        network = self._network
        if full:
            network.demand[producer] += cost
        if half:
            network.supply[producer] += cost
        if readers and not full:
            network.edge(producer, self._shared(readers, goes_out=True), cost)
        if readers and not half:
            network.edge(self._shared(readers, goes_out=False), producer, cost)

    def _shared(self, readers: Collection[int], *, goes_out: bool) -> int:
        """Return a node that is half only where all readers are (`goes_out`), or where any is."""
        if len(readers) == 1:
            return next(iter(readers))
        node = self._network.node()
        for reader in readers:
            self._network.edge(node, reader, *((UNLIMITED, 0) if goes_out else (0, UNLIMITED)))
        return node

    def add_fusions(self) -> None:
        """Add the cost of a border inside of a fusion: its launch, and a value that is written and read."""
        for fusion in self._costs.fusions:
            producer, consumer = self._node.get(fusion.producer), self._node.get(fusion.consumer)
            if producer is None and consumer is None:
                continue
            cost = self._costs.broken(fusion, self._costs.large) + self._costs.launch(fusion)
            self._apart(producer, consumer, cost)

    def _apart(self, producer: int | None, consumer: int | None, cost: int) -> None:
        """Add the cost of two units that differ; one that is None is float32."""
        if producer is None or consumer is None:
            for node in (node for node in (producer, consumer) if node is not None):
                self._network.demand[node] += cost
        elif producer != consumer:
            self._network.edge(producer, consumer, cost, cost)

    def add_types(self) -> None:
        """Tie units that may be half only where another is."""
        for unit, other in fusions.fused_pairs(self._graph):
            if unit in self._node and other in self._node:
                self._network.edge(self._node[unit], self._node[other], UNLIMITED)

    def unpaid(self) -> frozenset[int]:
        """Return the units that are cheaper in float32."""
        cut = self._network.cut_off()
        return frozenset(unit for unit, node in self._node.items() if node in cut)


def _representatives(ties: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Return one representative for each tied unit, the same for all that must have one colour."""
    first: dict[int, int] = {}

    def root(unit: int) -> int:
        while first.setdefault(unit, unit) != unit:
            first[unit] = first[first[unit]]
            unit = first[unit]
        return unit

    for group in ties:
        for unit in group:
            first[root(unit)] = root(group[0])
    return {unit: root(unit) for unit in list(first)}
