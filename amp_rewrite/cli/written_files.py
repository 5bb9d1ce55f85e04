"""The files that a command writes: what keeps one from being written is said before any work is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.idle_flags import refuse_idle_flags
from amp_rewrite.errors import OptionError, OutputError


class WrittenFile(click.Path):
    """The type of a flag that names a file to write."""


WRITTEN = WrittenFile(path_type=Path)


class WritingCommand(click.Command):
    """A command whose WRITTEN files can be written, and are neither each other nor what it reads, and of
    whose flags none is IDLE.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Looks at flags and files, then runs the command; raises OptionError and OutputError."""
        refuse_idle_flags(ctx)
        _refuse_clashes(list(_named(self.params, ctx.params)))
        return super().invoke(ctx)


@dataclass(frozen=True, slots=True)
class _Named:
    """A path, and the flag or argument that names it."""

    by: str
    path: Path
    is_written: bool


def _named(params: Sequence[click.Parameter], values: Mapping[str, Any]) -> Iterator[_Named]:
    for param in params:
        value = values.get(param.name or "")
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                yield _Named(_spelling(param), path, isinstance(param.type, WrittenFile))


def _spelling(param: click.Parameter) -> str:
    if isinstance(param, click.Argument):
        return (param.name or "").upper()
    return max(param.opts, key=len)


def _refuse_clashes(named: list[_Named]) -> None:
    for at, file in enumerate(named):
        if not file.is_written:
            continue
        _refuse_unwritable(file)
        others = [other for other in named[:at] + named[at + 1 :] if not _is_told_elsewhere(file, other)]
        for other in others:
            if file.path.resolve() == other.path.resolve():
                raise OptionError(
                    f"{file.by} and {other.by} both name {file.path}",
                    remedy=f"choose another place for {file.by}",
                )


def _refuse_unwritable(file: _Named) -> None:
    if file.path.is_dir():
        raise OutputError(f"is a folder; {file.by} takes a file", where=file.path, remedy="name a file in it")
    if file.path.exists() and not file.path.is_file():  # a rename would put a file in the place of a device
        raise OutputError("is a device or a pipe", where=file.path, remedy="name a file")
    if not file.path.parent.is_dir():
        raise OutputError(
            f"cannot be written: there is no folder {file.path.parent}",
            where=file.path,
            remedy="choose another place, or make it",
        )


def _is_told_elsewhere(file: _Named, other: _Named) -> bool:
    """A result over its model is refused with a flag that allows it (`output_paths`)."""
    return (file.by, other.by) == ("--output", "MODEL")
