"""The painting: a colour for every unit, with the rule that gave it and the unit that caused it; and the ties
of units that share a colour.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from amp_rewrite.policy.operator_lists import Entry


class Colour(enum.Enum):
    """The colour of a unit: half precision, or the original float32."""

    HALF = "half"
    FULL = "full"


class Rule(enum.Enum):
    """The rules, in the order in which they are applied."""

    ALLOW = "allow"
    DENY = "deny"
    BETWEEN = "between"
    LEAD = "lead"
    FOLLOW = "follow"
    SPREAD = "spread"
    UNPINNED = "unpinned"
    SETTLE = "settle"
    LEFT = "left"
    PRUNE = "prune"
    GATE = "gate"


@dataclass(frozen=True, slots=True)
class Paint:
    """A colour, the rule that gave it, and the unit that caused it (None: its own kind did)."""

    colour: Colour
    rule: Rule
    cause: int | None = None


@dataclass(frozen=True, slots=True)
class Painting:
    """A paint and an entry (the kind, with its evidence) for every unit of a graph, by position."""

    paints: tuple[Paint, ...]
    entries: tuple[Entry, ...]

    def is_half(self, unit: int) -> bool:
        """Whether a unit is HALF."""
        return self.paints[unit].colour is Colour.HALF

    @property
    def halves(self) -> list[bool]:
        """A flag for each unit, by position: True for HALF."""
        return [paint.colour is Colour.HALF for paint in self.paints]


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
