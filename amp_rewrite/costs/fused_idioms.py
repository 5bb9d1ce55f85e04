"""Norms that are written out and run as one kernel: which unit's colour counts for which others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph


@dataclass(frozen=True, slots=True)
class FusedIdioms:
    """The units of written-out norms, as the runtime fuses them, with the Casts in front of and within them.

    `inside` has for each unit in float32 that of the weight behind it: what it reads and makes is of that
    type. `absorbed` are all units that launch no kernel of their own; the weight stands for them.
    """

    inside: Mapping[int, int]
    absorbed: frozenset[int]


def find(graph: UnitGraph) -> FusedIdioms:
    """The norms of a model that have a weight."""
    inside: dict[int, int] = {}
    behind: set[int] = set()
    for result, spelled in graph.spelled.items():
        weight = _weight(graph, result) if spelled.part is Part.RESULT else None
        if weight is not None:
            inner = reach([result], graph.predecessors.__getitem__, lambda unit: _is(graph, unit, Part.INNER))
            inside.update(dict.fromkeys((result, *inner), weight))
            behind.update(
                reach([weight], graph.successors.__getitem__, lambda unit: _is(graph, unit, Part.OUTER))
            )
    return FusedIdioms(inside, frozenset((*inside, *behind)))


def together(graph: UnitGraph) -> Iterator[tuple[int, int]]:
    """Pairs of units of which the first may be half only where the second is: weights and data."""
    for alike in graph.alike:
        for weight in alike.weights:
            for other in (alike.producer, *alike.beside):
                if other is not None:
                    yield weight, other
            if alike.producer is not None:
                yield alike.producer, weight


def _weight(graph: UnitGraph, result: int) -> int | None:
    """The weight behind a norm, which reads its result."""
    return next((unit for unit in graph.successors[result] if _is(graph, unit, Part.OUTER)), None)


def _is(graph: UnitGraph, unit: int, part: Part) -> bool:
    return unit in graph.spelled and graph.spelled[unit].part is part
