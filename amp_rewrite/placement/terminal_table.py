"""Placements in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp_rewrite.console import Console, Part, Styled
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.placement.differences import between
from amp_rewrite.placement.placement import Counts, Placement

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
    differences = between(original, found)
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
