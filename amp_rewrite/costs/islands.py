"""What is taken from half, in connected parts: each with the Casts that it would need, and their price."""

from __future__ import annotations

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


@dataclass(slots=True)
class _Price:
    """The Casts of a part, their time and that of broken fusions; and the time that the part saves."""

    casts: int = 0
    cost: int = 0
    gain: int = 0


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
    prices = {part: _Price() for part in dict.fromkeys(parts.values())}
    for border in borders:
        for part, casts in _casts(border, left, parts):
            prices[part].casts += casts
            prices[part].cost += casts * costs.cast(border.value, costs.large)
    for fusion in costs.fusions:
        ends = {parts.get(fusion.producer), parts.get(fusion.consumer)}
        for part in ends - {None} if len(ends) == 2 else ():
            other = fusion.consumer if parts.get(fusion.producer) == part else fusion.producer
            sign = -1 if left[other] else 1
            prices[part].cost += sign * (costs.broken(fusion, costs.large) + costs.launch(fusion))
    for kernel in costs.kernels:
        for at, unit in enumerate(kernel.units):
            if unit in parts:
                prices[parts[unit]].gain += costs.gain(kernel, at, costs.large)
    nodes = Counter(parts[unit] for unit in {graph.units[u].node: u for u in parts}.values())
    found = {part: _island(nodes[part], price) for part, price in prices.items()}
    return {unit: found[part] for unit, part in parts.items()}


def _island(nodes: int, price: _Price) -> Island:
    times = round(price.cost / price.gain, 2) if price.gain > 0 else None
    return Island(nodes, max(price.casts, 0), times)


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
    for part in dict.fromkeys((*([] if own is None else [own]), *within)):
        more = within[part]
        after = _is_cast(border, made or part == own, halves + more, fulls - more)
        if after != before:
            yield part, int(after) - int(before)


def _is_cast(border: Border, is_half: bool, halves: int, fulls: int) -> bool:
    return (border.full or fulls > 0) if is_half else (border.half or halves > 0)
