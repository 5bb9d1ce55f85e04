"""Comparison of a result's placement with that of its original, and the runtime behind both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from amp_rewrite.console import Console, Part, Styled
from amp_rewrite.placement import opening
from amp_rewrite.placement.placement import Counts, Placement
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device
from amp_rewrite.text import plural

# Two placements -> their differences, and the regressions.


@dataclass(frozen=True, slots=True)
class Difference:
    """A number of a result, and that of its original, None where that is unknown; `is_worse` where it is
    higher and no rewrite should raise it.
    """

    what: str
    before: int | None
    after: int
    is_worse: bool = False

    def __str__(self) -> str:
        before = "" if self.before is None else f"{self.before:,} -> "
        return f"{self.what} {before}{self.after:,}"


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between the placements of an original and a result; empty where either does not load.

    `totals` are nodes, Casts, copies, nodes on the CPU; `operators` and `fused` count by operator.
    """

    totals: tuple[Difference, ...] = ()
    operators: tuple[Difference, ...] = ()
    fused: tuple[Difference, ...] = ()

    @property
    def worse(self) -> tuple[Difference, ...]:
        """The totals that got worse: inserted Casts, copies, nodes on the CPU."""
        return tuple(row for row in self.totals if row.is_worse)

    def to_json(self) -> dict[str, object]:
        """Return the same as plain data: differences with both numbers, and the names of worse totals."""
        rows = {"totals": self.totals, "operators": self.operators, "fused": self.fused}
        numbers = {key: {row.what: [row.before, row.after] for row in found} for key, found in rows.items()}
        return {**numbers, "worse": [found.what for found in self.worse]}


def compare_placements(original: Placement, result: Placement) -> Differences:
    """Return the differences from the original to the result."""
    if original.refused or result.refused:
        return Differences()
    old, new = totals(original), totals(result)
    return Differences(
        tuple(_differing(("nodes", "Casts", *_WATCHED), old, new)),
        *(
            tuple(_differing(sorted({*before, *after}), before, after))
            for before, after in ((original.operators, result.operators), (original.fused, result.fused))
        ),
    )


def totals(placement: Placement) -> dict[str, int]:
    """Return the totals of a placement, by the counted objects."""
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


def _differing(names: Iterable[str], before: Counts, after: Counts) -> Iterator[Difference]:
    rows = (_difference(name, before.get(name, 0), after.get(name, 0)) for name in names)
    return (row for row in rows if row.before != row.after)


def _difference(what: str, before: int | None, after: int) -> Difference:
    return Difference(what, before, after, what in _WATCHED and before is not None and after > before)


# Placements in a terminal.

HEADER = ("model", "nodes", "half", "float32", "Casts", "inserted", "copies", "on the CPU")
"""The columns of a table of placements, here and in Markdown."""


def cells(placement: Placement) -> list[str]:
    """Return the numbers of a placement that loads, as the columns behind the model have them."""
    half, full = (sum(counts.values()) for counts in (placement.half, placement.full))
    casts = (placement.float_casts, placement.inserted_casts, placement.copies, placement.cpu_nodes)
    return [f"{number:,}" for number in (placement.nodes, half, full, *casts)]


def print_placements(
    console: Console, placements: Mapping[str, Placement], original: Placement | None
) -> None:
    """Print a table with a line for each model, then its details: fusions, nodes on the CPU with the reason
    and, given the placement of an original, the differences from it.
    """
    loaded = {name: each for name, each in placements.items() if not each.refused}
    if loaded:
        rows = ([name, *cells(each)] for name, each in loaded.items())
        console.numbers(HEADER, rows)
    for name, each in placements.items():
        if len(placements) > 1:
            console.print(Styled(name, "bold"))
        if each.engine_bytes is not None:
            console.print(Styled(f"{'engine':<12}", "dim"), f"{each.engine_bytes / 1e6:,.1f} MB")
        for label, line in _lines(each, original):
            console.print(Styled(f"{label:<12}", "dim"), line)


def _lines(placement: Placement, original: Placement | None) -> Iterator[tuple[str, Part]]:
    if placement.refused:
        yield "REFUSED", Styled(placement.refused, "red")
        return
    if placement.fused:
        yield "fused", _counts_text(placement.fused)
    for group in placement.on_cpu:
        yield "on the CPU", f"{group.count} {group.operator} ({group.precision}): {group.why.value}"
    if placement.untyped:
        yield "unknown type", _counts_text(placement.untyped)
    if placement.failed:
        yield "NOT RUN", Styled(placement.failed, "red")
    if placement.profile is not None:
        profile = placement.profile
        ran = f"{plural(profile.nodes, 'node')}, {plural(profile.casts, 'Cast')} ran"
        yield "one run", f"{ran}, {profile.copies:,} {'copy' if profile.copies == 1 else 'copies'}"
    if original is not None:
        yield from _compared(original, placement)


def _counts_text(counts: Counts) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _compared(original: Placement, result_placement: Placement) -> Iterator[tuple[str, Part]]:
    if original.refused:
        yield "against", f"the original does not load: {original.refused}"
        return
    differences = compare_placements(original, result_placement)
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
    """The onnxruntime in use: its version, the device, and whether stub libraries stood in for CUDA."""

    version: str
    device: Device
    stubs: bool

    def to_json(self) -> dict[str, object]:
        """Return the same as plain data."""
        return {"onnxruntime": self.version, "provider": self.device.value.lower(), "stubs": self.stubs}


def runtime(device: Device) -> Runtime:
    """Return the runtime that places models on a device; MissingPackageError without one."""
    return Runtime(sessions.onnxruntime().__version__, device, opening.needs_stubs(device))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The placement of a result, and that of its original, None where that is not known."""

    runtime: Runtime
    result: Placement
    original: Placement | None

    def counts(self) -> Iterator[Difference]:
        """Yield the totals of a result that loads, beside those of an original that loads."""
        if self.result.refused:
            return
        before = {} if self.original is None or self.original.refused else totals(self.original)
        for what, number in totals(self.result).items():
            yield _difference(what, before.get(what), number)

    def to_json(self) -> dict[str, object]:
        """Return the same as plain data."""
        if self.original is None:
            return {**self.runtime.to_json(), "result": self.result.to_json()}
        against = {"against": compare_placements(self.original, self.result).to_json()}
        placements = {"original": self.original.to_json(), "result": {**self.result.to_json(), **against}}
        return {**self.runtime.to_json(), **placements}
