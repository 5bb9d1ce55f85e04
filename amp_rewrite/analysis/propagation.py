"""How far something travels through a unit graph, and which paths lead to an end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amp_rewrite.analysis.units import UnitGraph

Edges = Callable[[int], Iterable[int]]
Through = Callable[[int], bool]


def reach(roots: Iterable[int], edges: Edges, through: Through) -> dict[int, int]:
    """What can be reached from the roots by edges into units that `through` admits.

    Returns each unit that was entered with the one that it was entered from. A root is in it only when
    another root leads to it.
    """
    found: dict[int, int] = {}
    todo = list(roots)
    while todo:
        unit = todo.pop()
        for other in edges(unit):
            if other not in found and through(other):
                found[other] = unit
                todo.append(other)
    return found


class UnitUse(NamedTuple):
    """A value arrives at a port of a unit's node; `carried` is what is known of it there."""

    unit: int
    port: int
    carried: float = 0.0


class _Exit(NamedTuple):
    """What all uses of a unit that carry the same on have in common: it is followed only once, so that a
    wide node costs the sum of its inputs and readers, and not their product.
    """

    unit: int
    carried: float


After = Callable[[UnitUse], float | None]
"""What is carried on from what a unit makes; None where it ends."""


@dataclass(frozen=True, slots=True)
class Propagation:
    """All uses that were reached, with the exits that lead to each, and the uses that lead to each exit."""

    uses: Mapping[UnitUse, Sequence[_Exit]]
    exits: Mapping[_Exit, Sequence[UnitUse]]

    def on_paths_to(self, ends: Iterable[UnitUse]) -> dict[UnitUse, None]:
        """The uses on any path to one of the ends, which are uses that were reached; ends included."""
        found = dict.fromkeys(ends)
        passed: set[_Exit] = set()
        todo = list(found)
        while todo:
            before = [exit_ for exit_ in self.uses[todo.pop()] if exit_ not in passed]
            passed.update(before)
            fresh = [use for exit_ in before for use in self.exits[exit_] if use not in found]
            found.update(dict.fromkeys(fresh))
            todo += fresh
        return found


def propagate(graph: UnitGraph, starts: Iterable[UnitUse], after: After) -> Propagation:
    """Follows values from their uses through every unit that carries them on; linear in edges and in what
    can be carried.
    """
    uses: dict[UnitUse, list[_Exit]] = {use: [] for use in starts}
    exits: dict[_Exit, list[UnitUse]] = {}
    todo = list(uses)
    while todo:
        use = todo.pop()
        carried = after(use)
        if carried is None:
            continue
        exit_ = _Exit(use.unit, carried)
        if exit_ in exits:
            exits[exit_].append(use)
            continue
        exits[exit_] = [use]
        for other in uses_of(graph, *exit_):
            if other in uses:
                uses[other].append(exit_)
            else:
                uses[other] = [exit_]
                todo.append(other)
    return Propagation(uses, exits)


def uses_of(graph: UnitGraph, unit: int, carried: float = 0.0) -> Iterator[UnitUse]:
    """Where units read what a unit makes."""
    for value in graph.units[unit].defs:
        for reader, site in graph.uses.get(value, ()):
            yield UnitUse(reader, site.port, carried)
