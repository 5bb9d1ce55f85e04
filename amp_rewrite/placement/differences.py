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
    old, new = totals(original), totals(result)
    found = [
        Difference(what, old[what], new[what], is_worse=what in _WATCHED and new[what] > old[what])
        for what in ("nodes", "Casts", *_WATCHED)
        if old[what] != new[what]
    ]
    counts = (original.operators, result.operators), (original.fused, result.fused)
    return Differences(tuple(found), *(tuple(_by_operator(*pair)) for pair in counts))


def totals(placement: Placement) -> dict[str, int]:
    """The numbers of a placement by what they count."""
    return {
        "nodes": placement.nodes,
        "in half": sum(placement.half.values()),
        "in float32": sum(placement.full.values()),
        "Casts": placement.float_casts,
        "inserted Casts": placement.inserted_casts,
        "copies": placement.copies,
        "nodes on the CPU": placement.cpu_nodes,
    }


_WATCHED = ("inserted Casts", "copies", "nodes on the CPU")


def _by_operator(before: Counts, after: Counts) -> Iterator[Difference]:
    for name in sorted({*before, *after}):
        old, new = before.get(name, 0), after.get(name, 0)
        if old != new:
            yield Difference(name, old, new)
