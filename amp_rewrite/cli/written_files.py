"""The files that a command writes: what keeps one from being written is said before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli import touched_files
from amp_rewrite.cli.idle_flags import refuse_idle_flags
from amp_rewrite.cli.touched_files import MODEL, OUTPUT, RESULT, Touched
from amp_rewrite.errors import OptionError
from amp_rewrite.files import destination
from amp_rewrite.model import external_data_writing
from amp_rewrite.model.output_paths import is_same


class WritingCommand(click.Command):
    """A command whose WRITTEN files can be written, and are neither each other nor what it reads, and of
    whose flags none is IDLE.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Looks at flags and files, then runs the command; raises OptionError and OutputError."""
        refuse_idle_flags(ctx)
        written = list(touched_files.written(self.params, ctx.params))
        if written:
            _refuse_unwritable(written)
            _refuse_clashes(written, list(touched_files.read(self.params, ctx.params)))
        return super().invoke(ctx)


def _refuse_unwritable(written: Sequence[Touched]) -> None:
    for file in written:
        if file.path.parent.is_dir() or file.by != "--plots":  # which makes its folder
            destination.resolve(file.path)


def _refuse_clashes(written: Sequence[Touched], read: Sequence[Touched]) -> None:
    results = [file for file in written if file.by in (OUTPUT, RESULT)]
    replaced = [weights for result in results for weights in touched_files.weights(result)]
    for at, file in enumerate(written):
        others = (*read, *(replaced if file not in results else ()))
        clash = next((other for other in others if is_same(file.path, other.path)), None)
        clash = clash or next((other for other in written[at + 1 :] if _is_one_place(file, other)), None)
        if clash is not None and not _is_told_elsewhere(file, clash):
            raise _clash(file, clash)
        for result in results:
            _refuse_name_of_weights(file, result)


def _refuse_name_of_weights(file: Touched, result: Touched) -> None:
    beside = file.path.parent.resolve() == result.path.parent.resolve()
    if beside and file.by != result.by and external_data_writing.is_file_name(file.path.name, result.path):
        raise _clash(file, Touched(f"the weights of {result.by}", file.path))


def _is_one_place(file: Touched, other: Touched) -> bool:
    """Whether two files to write, there or not, are one, also where case does not tell names apart."""
    if file.by == other.by:
        return False
    return is_same(file.path, other.path) or _folded(file.path) == _folded(other.path)


def _folded(path: Path) -> str:
    return str(path.resolve()).casefold()


def _clash(file: Touched, other: Touched) -> OptionError:
    return OptionError(
        f"{file.by} and {other.by} both name {file.path}", remedy=f"choose another place for {file.by}"
    )


def _is_told_elsewhere(file: Touched, other: Touched) -> bool:
    """A result over its model is refused with a flag that allows it (`output_paths`)."""
    return (file.by, other.by) == (OUTPUT, MODEL)
