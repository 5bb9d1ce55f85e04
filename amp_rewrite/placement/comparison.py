"""The placement of a result beside that of its original, and what made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from amp_rewrite.console import Console, Part, Styled
from amp_rewrite.placement import opening
from amp_rewrite.placement.placement import Counts, Placement
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device
from amp_rewrite.text import plural

# Two placements -> what changed, and what got worse.


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


def compare_placements(original: Placement, result: Placement) -> Differences:
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


# Placements in a terminal.

HEADER = ("model", "nodes", "half", "float32", "Casts", "inserted", "copies", "on the CPU")
"""The columns of a table of placements, here and in Markdown."""


def cells(placement: Placement) -> list[str]:
    """The numbers of a placement that loads, as the columns behind the model have them."""
    half, full = (sum(counts.values()) for counts in (placement.half, placement.full))
    casts = (placement.float_casts, placement.inserted_casts, placement.copies, placement.cpu_nodes)
    return [f"{number:,}" for number in (placement.nodes, half, full, *casts)]


def print_placements(
    console: Console, placements: Mapping[str, Placement], original: Placement | None
) -> None:
    """A table with a line for each model, and below it the details of each: what is fused, what is on the CPU
    and why, and with the placement of an original what differs from it.
    """
    loaded = {name: found for name, found in placements.items() if not found.refused}
    if loaded:
        rows = ([name, *cells(found)] for name, found in loaded.items())
        console.numbers(HEADER, rows)
    for name, found in placements.items():
        if len(placements) > 1:
            console.print(Styled(name, "bold"))
        for label, line in _lines(found, original):
            console.print(Styled(f"{label:<12}", "dim"), line)


def _lines(found: Placement, original: Placement | None) -> Iterator[tuple[str, Part]]:
    if found.refused:
        yield "REFUSED", Styled(found.refused, "red")
        return
    if found.fused:
        yield "fused", _counted(found.fused)
    for group in found.on_cpu:
        yield "on the CPU", f"{group.count} {group.operator} ({group.precision}): {group.why.value}"
    if found.untyped:
        yield "unknown type", _counted(found.untyped)
    if found.failed:
        yield "NOT RUN", Styled(found.failed, "red")
    if found.profile is not None:
        profile = found.profile
        ran = f"{plural(profile.nodes, 'node')}, {plural(profile.casts, 'Cast')} ran"
        yield "one run", f"{ran}, {profile.copies:,} {'copy' if profile.copies == 1 else 'copies'}"
    if original is not None:
        yield from _compared(original, found)


def _counted(counts: Counts) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _compared(original: Placement, found: Placement) -> Iterator[tuple[str, Part]]:
    if original.refused:
        yield "against", f"the original does not load: {original.refused}"
        return
    differences = compare_placements(original, found)
    kinds = {
        "against": differences.totals,
        "operators": differences.operators,
        "fusions": differences.fused,
    }
    for label, rows in kinds.items():
        if rows:
            yield label, ", ".join(map(str, rows))
    for worse in differences.worse:
        yield "WORSE", Styled(str(worse), "red")


@dataclass(frozen=True, slots=True)
class Runtime:
    """The onnxruntime that was asked: its version, the device, and whether stub libraries stood in for it."""

    version: str
    device: Device
    stubs: bool

    def to_json(self) -> dict[str, object]:
        """The same as plain data."""
        return {"onnxruntime": self.version, "provider": self.device.value.lower(), "stubs": self.stubs}


def runtime(device: Device) -> Runtime:
    """The runtime that places models on a device; MissingPackageError without one."""
    return Runtime(sessions.onnxruntime().__version__, device, opening.needs_stubs(device))


@dataclass(frozen=True, slots=True)
class Count:
    """A number of a result, that of its original (None where that is unknown), and whether it is worse."""

    what: str
    before: int | None
    after: int
    is_worse: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The placement of a result, and that of its original, None where that is not known."""

    runtime: Runtime
    result: Placement
    original: Placement | None

    def counts(self) -> Iterator[Count]:
        """The totals of a result that loads, beside those of an original that loads."""
        original = None if self.original is None or self.original.refused else self.original
        worse = (
            {row.what for row in compare_placements(original, self.result).worse} if original else set[str]()
        )
        if self.result.refused:
            return
        after, before = totals(self.result), totals(original) if original else {}
        for what, number in after.items():
            yield Count(what, before.get(what), number, is_worse=what in worse)

    def to_json(self) -> dict[str, object]:
        """The same as plain data."""
        if self.original is None:
            return {**self.runtime.to_json(), "result": self.result.to_json()}
        against = {"against": compare_placements(self.original, self.result).to_json()}
        placements = {"original": self.original.to_json(), "result": {**self.result.to_json(), **against}}
        return {**self.runtime.to_json(), **placements}
