"""A coverage in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Column

from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage import wording
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.rules import Check
from amp_rewrite.escaping import brief

SHOWN = 10
"""How many of the nodes that break a rule are named; JSON and JUnit name all."""


def print_coverage(console: Console, coverage: Coverage) -> None:
    """Totals, a line for each operator, Casts, and what the numbers rest on."""
    console.table(_columns(wording.HEADER), wording.totals(coverage))
    console.print()
    console.table(_columns(wording.ROW_HEADER), wording.rows(coverage))
    console.print()
    console.print(Styled("Casts    ", "dim"), wording.casts(coverage))
    for assumption in coverage.assumptions:
        console.print(Styled("assumed  ", "dim"), assumption)


def _columns(header: Sequence[str]) -> list[Column]:
    first, *rest = header
    return [Column(first, no_wrap=True), *(Column(name, justify="right", no_wrap=True) for name in rest)]


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """A line for each rule, and under a broken one the nodes that break it."""
    for check in checks:
        mark = Styled("kept    ", "green") if check.ok else Styled("BROKEN  ", "red")
        console.print(mark, f" {check.rule}: {check.found}")
        for line in nodes(check):
            console.print(f"           {line}")


def nodes(check: Check, shown: int = SHOWN) -> list[str]:
    """The first nodes that break a rule, as they can be printed, and how many there are beyond."""
    more = len(check.nodes) - shown
    named = [brief(name) or "(unnamed)" for name in check.nodes[:shown]]
    return [*named, f"and {more:,} more"] if more > 0 else named
