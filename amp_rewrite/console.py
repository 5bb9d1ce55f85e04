"""The only place that prints: names reach a terminal or a log as plain text.

No other module prints with rich, except the spinner in `cli.progress`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

import rich.console
from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from amp_rewrite.text import brief, shortened, visible


@dataclass(frozen=True, slots=True)
class Styled:
    """Text, and its style where there are colours."""

    text: str
    style: str = ""


Part = str | Styled


class Console:
    """Prints lines and tables, with names escaped and shortened.

    Lines are not wrapped, as paths may be long. `quiet` prints nothing.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        stderr: bool = False,
        file: IO[str] | None = None,
        width: int | None = None,
    ) -> None:
        self.quiet = quiet
        # No markup: a name may contain brackets or :smile:.
        self._rich = rich.console.Console(
            quiet=quiet,
            stderr=stderr,
            file=file,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
        )

    def print(self, *parts: Part) -> None:
        """Print the parts as one line, without separators."""
        self._rich.print(Text().join(map(_in_line, parts)))

    def whole(self, part: Part) -> None:
        """Print one line to be copied: no name in it is shortened."""
        self._rich.print(Text(visible(_text(part)), _style(part)))

    def command(self, line: str) -> None:
        """Print a command to a CI log; the caller escapes names in it."""
        self._rich.print(Text(line))

    def numbers(self, header: Sequence[str], rows: Iterable[Sequence[Part]], *, texts: int = 1) -> None:
        """Print a table of numbers, whose first columns are texts."""
        right = (Column(name, justify="right") for name in header[texts:])
        self.table([*header[:texts], *right], rows)

    def table(self, columns: Sequence[str | Column], rows: Iterable[Sequence[Part]]) -> None:
        """Print a table; columns with `overflow="fold"` fold in a terminal only, not in a pipe, and no
        narrower than FOLDED. Other columns are never cut: in a narrow terminal their lines go on below.
        """
        table = Table(*columns, box=None, header_style="dim", pad_edge=False)
        for column in table.columns:
            column.no_wrap = column.overflow != "fold"
        for row in rows:
            table.add_row(*map(_cell, row))
        before = self._rich.width
        foldable = self._foldable(table) if self._rich.file.isatty() else 0
        self._rich.width = max(before, self._full_width(table) - foldable)
        self._rich.print(table)
        self._rich.width = before

    def _foldable(self, table: Table) -> int:
        """Return the width that folding saves in the columns that fold."""
        folding = (column for column in table.columns if column.overflow == "fold")
        texts = (map(str, (column.header, *column.cells)) for column in folding)
        return sum(max(max(map(cell_len, column)) - FOLDED, 0) for column in texts)

    def _full_width(self, table: Table) -> int:
        unbounded = self._rich.options.update(max_width=_WIDEST)
        return Measurement.get(self._rich, unbounded, table).maximum


def write_escaped(text: str) -> None:
    """Write a text that is escaped, such as JSON, to standard output as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


FOLDED = 12
"""The least width of a column that folds."""

_WIDEST = 10_000
"""More than the width of any table."""


def _in_line(part: Part) -> Text:
    return Text(brief(_text(part)), _style(part))


def _cell(part: Part) -> Text:
    return Text(shortened(visible(_text(part))), _style(part))


def _text(part: Part) -> str:
    return part.text if isinstance(part, Styled) else part


def _style(part: Part) -> str:
    return part.style if isinstance(part, Styled) else ""
