"""A coverage in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from amp_rewrite.reporting.coverage import wording
from amp_rewrite.reporting.coverage.counts import Coverage
from amp_rewrite.reporting.coverage.rules import Check

SHOWN = 10
"""How many of the nodes that break a rule are named; JSON and JUnit name all."""


def print_coverage(console: Console, coverage: Coverage) -> None:
    """Totals, a line for each operator, Casts, and what the numbers rest on."""
    _print_table(console, _table(wording.HEADER, list(wording.totals(coverage))))
    console.print()
    _print_table(console, _table(wording.ROW_HEADER, list(wording.rows(coverage))))
    console.print()
    console.print(Text("Casts    ", style="dim").append(wording.casts(coverage), style="not dim"))
    for assumption in coverage.assumptions:
        console.print(Text("assumed  ", style="dim").append(wording.printable(assumption), style="not dim"))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _print_table(console: Console, table: Table) -> None:
    """Prints a table in full, however narrow the terminal: what is piped into a file must lose nothing."""
    wide = console.options.update(max_width=_WIDEST)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)


_WIDEST = 1000
"""Longer names of operators are cut."""


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """A line for each rule, and under a broken one the nodes that break it."""
    for check in checks:
        mark = Text("kept    ", style="green") if check.ok else Text("BROKEN  ", style="red")
        console.print(mark.append(wording.printable(f" {check.rule}: {check.found}"), style="default"))
        for line in nodes(check):
            console.print(f"           {line}")


def nodes(check: Check, shown: int = SHOWN) -> list[str]:
    """The first nodes that break a rule, and how many there are beyond."""
    more = len(check.nodes) - shown
    named = [wording.printable(name) or "(unnamed)" for name in check.nodes[:shown]]
    return [*named, f"and {more:,} more"] if more > 0 else named
