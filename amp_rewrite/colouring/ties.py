"""Which units go together whatever their kinds: ties, and edges that a rule makes up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def edges_of(pairs: Iterable[tuple[int | None, int | None]]) -> dict[int, list[int]]:
    """The edges of a graph, each from the first of a pair to the second, where there are both."""
    found: dict[int, list[int]] = {}
    for start, end in pairs:
        if start is not None and end is not None:
            found.setdefault(start, []).append(end)
    return found


class Ties:
    """What a unit is tied to; a group is given out once, since who asked has gone to all of it."""

    def __init__(self, ties: Sequence[tuple[int, ...]]) -> None:
        self._ties = ties
        self._groups: dict[int, list[int]] = {}
        self._given: set[int] = set()
        for group, members in enumerate(ties):
            for unit in members:
                self._groups.setdefault(unit, []).append(group)

    def of(self, unit: int) -> Iterator[int]:
        """The members of groups of a unit that were not given out before."""
        for group in self._groups.get(unit, ()):
            if group not in self._given:
                self._given.add(group)
                yield from self._ties[group]
