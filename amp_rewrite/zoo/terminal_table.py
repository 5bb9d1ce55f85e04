"""A zoo in a terminal."""

from __future__ import annotations

from amp_rewrite.console import Console, Styled
from amp_rewrite.zoo import index_page
from amp_rewrite.zoo.row import Row
from amp_rewrite.zoo.run import Zoo


def print_zoo(console: Console, zoo: Zoo) -> None:
    """A line for each model, below the table what is wrong with any, and the counts."""
    rows = ([row.name, _status(row), *index_page.cells(row)[2:]] for row in zoo.rows)
    console.numbers(index_page.HEADER, rows, texts=2)
    console.print()
    for row in zoo.rows:
        if row.why:
            console.print(Styled(row.name, "bold"), f": {row.why}")
    again = f"; {zoo.reused} of them from an earlier run" if zoo.reused else ""
    console.print(", ".join(f"{count} {name}" for name, count in zoo.counts.items()), again)


def print_failures(console: Console, zoo: Zoo) -> None:
    """A line for each model that failed or is too far off, and none for the others."""
    for row in zoo.rows:
        if not row.status.is_good:
            console.print(_status(row), f" {row.name}: {row.why}")


def _status(row: Row) -> Styled:
    return Styled(row.status.value, "" if row.status.is_good else "red")
