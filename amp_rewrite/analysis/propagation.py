"""Reachability in a unit graph, and the uses on paths to given ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amp_rewrite.analysis.units import UnitGraph


def reach(
    roots: Iterable[int],
    edges: Callable[[int], Iterable[int]],
    through: Callable[[int], bool] = lambda _: True,
) -> dict[int, int]:
    """Return the units reachable from the roots by edges to units for which `through` holds.

    Each is mapped to the unit from which it was reached: `traversal.reach` with causes. A root is included
    only if another root reaches it.
    """
    origins: dict[int, int] = {}
    todo = list(roots)
    while todo:
        unit = todo.pop()
        for other in edges(unit):
            if other not in origins and through(other):
                origins[other] = unit
                todo.append(other)
    return origins


class UnitUse(NamedTuple):
    """A use of a value: a port of a unit's node; `carried` is the fact known of the value there."""

    unit: int
    port: int
    carried: float = 0.0


class _Exit(NamedTuple):
    """The outputs of a unit with the fact they carry, followed once for all its uses that carry the same: a
    wide node costs the sum of its inputs and consumers, not their product.
    """

    unit: int
    carried: float


After = Callable[[UnitUse], float | None]
"""Fact that the outputs of the unit carry, for a use of it; None if propagation ends there."""


@dataclass(frozen=True, slots=True)
class Propagation:
    """All reached uses, each with the exits before it, and all exits, each with its uses."""

    uses: Mapping[UnitUse, Sequence[_Exit]]
    exits: Mapping[_Exit, Sequence[UnitUse]]

    def on_paths_to(self, ends: Iterable[UnitUse]) -> dict[UnitUse, None]:
        """Return the uses on any path to one of the ends, including the ends, which must be among `uses`."""
        path_uses = dict.fromkeys(ends)
        exits: set[_Exit] = set()
        todo = list(path_uses)
        while todo:
            before = [exit_ for exit_ in self.uses[todo.pop()] if exit_ not in exits]
            exits.update(before)
            fresh = [use for exit_ in before for use in self.exits[exit_] if use not in path_uses]
            path_uses.update(dict.fromkeys(fresh))
            todo += fresh
        return path_uses


def propagate(graph: UnitGraph, starts: Iterable[UnitUse], after: After) -> Propagation:
    """Follow values from their uses through every unit that propagates them; linear in the edges times the
    distinct values of `carried`.
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
    """Yield the uses of the values that a unit produces."""
    for value in graph.units[unit].defs:
        for consumer, use in graph.uses.get(value, ()):
            yield UnitUse(consumer, use.port, carried)
