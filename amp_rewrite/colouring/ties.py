"""Ties of units that share a colour whatever their kinds, and ad-hoc edges of a rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def edges_of(pairs: Iterable[tuple[int | None, int | None]]) -> dict[int, list[int]]:
    """Return the adjacency of a graph with an edge for each pair, except pairs with None."""
    edges: dict[int, list[int]] = {}
    for start, end in pairs:
        if start is not None and end is not None:
            edges.setdefault(start, []).append(end)
    return edges


class Ties:
    """The ties of units; each group is yielded once, as its first visitor reaches all members."""

    def __init__(self, ties: Sequence[tuple[int, ...]]) -> None:
        self._ties = ties
        self._groups: dict[int, list[int]] = {}
        self._visited: set[int] = set()
        for group, members in enumerate(ties):
            for unit in members:
                self._groups.setdefault(unit, []).append(group)

    def of(self, unit: int) -> Iterator[int]:
        """Yield the members of a unit's groups that were not yielded before."""
        for group in self._groups.get(unit, ()):
            if group not in self._visited:
                self._visited.add(group)
                yield from self._ties[group]
