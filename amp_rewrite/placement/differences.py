"""Two placements -> what changed, and what got worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amp_rewrite.placement.placement import Counts, Placement


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that differs; `is_worse` for those that no rewrite should raise."""

    what: str
    before: int
    after: int
    is_worse: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.before:,} -> {self.after:,}"


@dataclass(frozen=True, slots=True)
class Differences:
    """What differs between the placements of an original and a result; empty where either does not load.

    `totals` are nodes, Casts, copies, nodes on the CPU; `operators` and `fused` count by operator.
    """

    totals: tuple[Difference, ...] = ()
    operators: tuple[Difference, ...] = ()
    fused: tuple[Difference, ...] = ()

    @property
    def worse(self) -> tuple[Difference, ...]:
        """The totals that got worse: inserted Casts, copies, nodes on the CPU."""
        return tuple(found for found in self.totals if found.is_worse)

    def to_json(self) -> dict[str, object]:
        """The same as plain data: what differs with both numbers, and the names of what got worse."""
        rows = {"totals": self.totals, "operators": self.operators, "fused": self.fused}
        numbers = {key: {row.what: [row.before, row.after] for row in found} for key, found in rows.items()}
        return {**numbers, "worse": [found.what for found in self.worse]}


def between(original: Placement, result: Placement) -> Differences:
    """What differs from the original to the result."""
    if original.refused or result.refused:
        return Differences()
    totals = [
        Difference(what, before, after, is_worse=is_watched and after > before)
        for what, before, after, is_watched in _totals(original, result)
        if before != after
    ]
    counts = (original.operators, result.operators), (original.fused, result.fused)
    return Differences(tuple(totals), *(tuple(_by_operator(*pair)) for pair in counts))


def _totals(original: Placement, result: Placement) -> Iterator[tuple[str, int, int, bool]]:
    yield "nodes", original.nodes, result.nodes, False
    yield "Casts", original.float_casts, result.float_casts, False
    yield "inserted Casts", original.inserted_casts, result.inserted_casts, True
    yield "copies", original.copies, result.copies, True
    yield "nodes on the CPU", original.cpu_nodes, result.cpu_nodes, True


def _by_operator(before: Counts, after: Counts) -> Iterator[Difference]:
    for name in sorted({*before, *after}):
        old, new = before.get(name, 0), after.get(name, 0)
        if old != new:
            yield Difference(name, old, new)
