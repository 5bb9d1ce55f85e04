"""A coverage and the results of rules in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage import table_cells
from amp_rewrite.coverage.ci_rules import RuleResult
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.escaping import brief

SHOWN = 10
"""How many of the nodes that break a rule are listed; JSON and JUnit list all."""


def print_coverage(console: Console, coverage: Coverage) -> None:
    """Prints totals, one line for each operator, Casts and assumptions."""
    console.numbers(table_cells.HEADER, table_cells.totals(coverage))
    console.print()
    console.numbers(table_cells.ROW_HEADER, table_cells.rows(coverage))
    console.print()
    console.print(Styled("Casts    ", "dim"), table_cells.casts(coverage))
    for assumption in coverage.assumptions:
        console.print(Styled("assumed  ", "dim"), assumption)


def print_checks(console: Console, checks: Sequence[RuleResult]) -> None:
    """Prints one line for each rule, and below a broken one the nodes that break it."""
    for check in checks:
        mark = Styled("kept    ", "green") if check.ok else Styled("BROKEN  ", "red")
        console.print(mark, f" {check.rule}: {check.found}")
        for line in nodes(check):
            console.print(f"           {line}")


def nodes(check: RuleResult, shown: int = SHOWN) -> list[str]:
    """The first nodes that break a rule, escaped for printing, and the number of the others."""
    more = len(check.nodes) - shown
    named = [brief(name) or "(unnamed)" for name in check.nodes[:shown]]
    return [*named, f"and {more:,} more"] if more > 0 else named
