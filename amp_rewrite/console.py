"""Where commands print: whatever is printed goes through here, and reaches a terminal or a log as text alone.

No other module has rich print, but for the spinner in `cli.progress`, which shows stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

import rich.console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from amp_rewrite.escaping import brief, shortened, visible


@dataclass(frozen=True, slots=True)
class Styled:
    """Text, and how it looks where there are colours."""

    text: str
    style: str = ""


Part = str | Styled


class Console:
    """Prints lines and tables, each name in them visible and of a sensible length.

    No line is broken: a path may be long. `quiet` prints nothing.
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
        # Text is printed as it is: a name may hold brackets, and :smile: is no picture.
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
        """One line, of its parts without anything between them; what they hold ends no line."""
        self._rich.print(Text().join(map(_in_line, parts)))

    def whole(self, part: Part) -> None:
        """One line that is there to be copied: no name in it is shortened."""
        self._rich.print(Text(visible(_text(part)), _style(part)))

    def command(self, line: str) -> None:
        """A line that a CI's log is to take for a command; what it holds of names was escaped for that."""
        self._rich.print(Text(line))

    def table(self, columns: Sequence[str | Column], rows: Iterable[Sequence[Part]]) -> None:
        """A table; columns with `overflow="fold"` fold in a terminal only, and a pipe gets whole lines."""
        table = Table(*columns, box=None, header_style="dim", pad_edge=False)
        for row in rows:
            table.add_row(*map(_cell, row))
        before = self._rich.width
        if not (self._rich.file.isatty() and any(column.overflow == "fold" for column in table.columns)):
            self._rich.width = max(before, self._wanted(table))
        self._rich.print(table)
        self._rich.width = before

    def _wanted(self, table: Table) -> int:
        unbounded = self._rich.options.update(max_width=_WIDEST)
        return Measurement.get(self._rich, unbounded, table).maximum


_WIDEST = 10_000
"""More than the cells of any table of ours take up beside each other."""


def _in_line(part: Part) -> Text:
    return Text(brief(_text(part)), _style(part))


def _cell(part: Part) -> Text:
    return Text(shortened(visible(_text(part))), _style(part))


def _text(part: Part) -> str:
    return part.text if isinstance(part, Styled) else part


def _style(part: Part) -> str:
    return part.style if isinstance(part, Styled) else ""
