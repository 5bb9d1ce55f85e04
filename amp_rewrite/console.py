"""The only place that prints: names reach a terminal or a log as plain text.

No other module prints with rich, except the progress bar in `cli.progress`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO

import rich.console
from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from amp_rewrite.process.startup import drop
from amp_rewrite.text import brief, names_cut, shortened, visible


@dataclass(frozen=True, slots=True)
class Styled:
    """Text, and its style where there are colours."""

    text: str
    style: str = ""


Part = str | Styled


class Console:
    """Prints lines and tables, with names escaped and shortened.

    Lines are not wrapped, as paths may be long, but those with a label. `quiet` prints nothing.
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
        self._rich = _RichConsole(
            quiet=quiet,
            stderr=stderr,
            file=file,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
        )

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads the lines, and their length matters."""
        return self._rich.file.isatty()

    def print(self, *parts: Part) -> None:
        """Print the parts as one line, without separators."""
        self._rich.print(Text().join(map(_shown, parts)))

    def whole(self, part: Part) -> None:
        """Print one line to be copied: no name in it is shortened."""
        self._rich.print(_shown(part, visible))

    def labelled(self, label: Styled, text: str) -> None:
        """Print a label and a text. On a terminal, lines break between words and go on below the text, and
        quoted names are cut in the middle.
        """
        indent, lines = cell_len(label.text), [brief(text)]
        if self.is_terminal:
            room = max(self._rich.width - indent, SHORTEST)
            lines = textwrap.wrap(
                names_cut(text, room // 2), room, break_long_words=False, break_on_hyphens=False
            )
        for row, line in enumerate(lines):
            self._rich.print(Text.assemble(" " * indent if row else (label.text, label.style), line))

    def command(self, line: str) -> None:
        """Print a command to a CI log; the caller escapes names in it."""
        self._rich.print(Text(line))

    def numbers(self, header: Sequence[str], rows: Iterable[Sequence[Part]], *, texts: int = 1) -> None:
        """Print a table of numbers, whose first columns are texts."""
        right = (Column(name, justify="right") for name in header[texts:])
        self.table([*header[:texts], *right], rows)

    def table(
        self, columns: Sequence[str | Column], rows: Iterable[Sequence[Part]], *, names: int | None = None
    ) -> None:
        """Print a table. On a terminal that is too narrow, the column `names` is cut in the middle, to no
        less than SHORTEST; other columns never, nor any in a pipe.
        """
        cells = [[_shown(part, lambda text: shortened(visible(text))) for part in row] for row in rows]
        excess = self._full_width(_laid_out(columns, cells)) - self._rich.width
        if names is not None and excess > 0 and self.is_terminal:
            widest = max(cell_len(row[names].plain) for row in cells)
            for row in cells:
                name = shortened(row[names].plain, max(widest - excess, SHORTEST))
                row[names] = Text(name, row[names].style)
        table = _laid_out(columns, cells)
        before, self._rich.width = self._rich.width, max(self._rich.width, self._full_width(table))
        self._rich.print(table)
        self._rich.width = before

    def _full_width(self, table: Table) -> int:
        unbounded = self._rich.options.update(max_width=_WIDEST)
        return Measurement.get(self._rich, unbounded, table).maximum


class _RichConsole(rich.console.Console):
    def on_broken_pipe(self) -> None:
        """Print nothing more where nobody reads; the command goes on."""
        drop(self.file)


def write_escaped(text: str) -> None:
    """Write a text that is escaped, such as JSON, to standard output as it is, if somebody reads it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)


SHORTEST = 12
"""The least width of a column of names that are cut."""

_WIDEST = 10_000
"""More than the width of any table."""


def _laid_out(columns: Sequence[str | Column], cells: Iterable[Iterable[Text]]) -> Table:
    table = Table(*columns, box=None, header_style="dim", pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for row in cells:
        table.add_row(*row)
    return table


def _shown(part: Part, escape: Callable[[str], str] = brief) -> Text:
    text, style = (part.text, part.style) if isinstance(part, Styled) else (part, "")
    return Text(escape(text), style)
