"""What is taken from half, in connected parts: each with the Casts that it would need, and their price."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs.borders import Border, Made
from amp_rewrite.costs.model_costs import ModelCosts


@dataclass(frozen=True, slots=True)
class Island:
    """A connected part: so many nodes, and so many Casts more where it is half.

    `times` is how many times as much as it saves it would cost, as predicted; None where it saves nothing.
    """

    nodes: int
    casts: int
    times: float | None


def find(
    graph: UnitGraph,
    costs: ModelCosts,
    borders: Iterable[Border],
    left: Sequence[bool],
    gone: Collection[int],
) -> Mapping[int, Island]:
    """The island of each unit that is `gone` from half; `left` are the colours without them.

    Linear in units, edges and kernels.
    """
    parts = _parts(graph, gone)
    bill = _Bill(graph, costs, left, parts)
    bill.add_borders(borders)
    bill.add_fusions()
    bill.add_gains()
    found = bill.islands()
    return {unit: found[part] for unit, part in parts.items()}


class _Bill:
    """What each part would cost, were it half, and what it would save."""

    def __init__(
        self, graph: UnitGraph, costs: ModelCosts, left: Sequence[bool], parts: Mapping[int, int]
    ) -> None:
        self._graph, self._costs, self._left, self._parts = graph, costs, left, parts
        self._casts, self._cost, self._gain = Counter[int](), Counter[int](), Counter[int]()

    def add_borders(self, borders: Iterable[Border]) -> None:
        """The Casts that come, less those that go."""
        for border in borders:
            for part, casts in _casts(border, self._left, self._parts):
                self._casts[part] += casts
                self._cost[part] += casts * self._costs.cast(border.value, self._costs.large)

    def add_fusions(self) -> None:
        """The fusions that it would break, less those that it would mend."""
        for fusion in self._costs.fusions:
            cost = self._costs.broken(fusion, self._costs.large) + self._costs.launch(fusion)
            for unit, other in itertools.permutations((fusion.producer, fusion.consumer)):
                part = self._parts.get(unit)
                if part is not None and self._parts.get(other) != part:
                    self._cost[part] += -cost if self._left[other] else cost

    def add_gains(self) -> None:
        """The time that kernels take less."""
        for kernel in self._costs.kernels:
            for at, unit in enumerate(kernel.units):
                if unit in self._parts:
                    self._gain[self._parts[unit]] += self._costs.gain(kernel, at, self._costs.large)

    def islands(self) -> dict[int, Island]:
        """Every part as an island."""
        of_node = {self._graph.units[unit].node: part for unit, part in self._parts.items()}
        nodes = Counter(of_node.values())
        return {part: self._island(nodes[part], part) for part in set(self._parts.values())}

    def _island(self, nodes: int, part: int) -> Island:
        cost, gain = self._cost[part], self._gain[part]
        return Island(nodes, max(self._casts[part], 0), round(cost / gain, 2) if gain > 0 else None)


def _parts(graph: UnitGraph, gone: Collection[int]) -> dict[int, int]:
    """A number for each of these units, the same for connected ones: the lowest of them."""
    tied: dict[int, list[int]] = {}
    for group in graph.ties:
        for unit in group if any(unit in gone for unit in group[:1]) else ():
            tied.setdefault(unit, []).extend(group[:1] if unit != group[0] else group)

    def beside(unit: int) -> Iterator[int]:
        yield from graph.predecessors[unit]
        yield from graph.successors[unit]
        yield from tied.get(unit, ())

    parts: dict[int, int] = {}
    for unit in sorted(gone):
        if unit not in parts:
            found = reach([unit], beside, lambda other: other in gone and other not in parts)
            parts.update(dict.fromkeys((unit, *found), unit))
    return parts


def _casts(border: Border, left: Sequence[bool], parts: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """How many Casts of a value each part at it would add, were it half."""
    within = Counter(parts[unit] for unit in border.readers if unit in parts)
    own = None if border.producer is None else parts.get(border.producer)
    if own is None and not within:
        return
    halves = sum([left[unit] for unit in border.readers])
    fulls = len(border.readers) - halves
    made = border.made is Made.HALF if border.producer is None else left[border.producer]
    before = _is_cast(border, made, halves, fulls)
    touched = set(within) if own is None else {own, *within}
    for part in sorted(touched):
        more = within[part]
        after = _is_cast(border, made or part == own, halves + more, fulls - more)
        if after != before:
            yield part, int(after) - int(before)


def _is_cast(border: Border, is_half: bool, halves: int, fulls: int) -> bool:
    return (border.full or fulls > 0) if is_half else (border.half or halves > 0)
