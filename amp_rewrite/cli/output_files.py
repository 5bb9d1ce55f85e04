"""The files that a command writes: looked at before any work, and moved into place together after it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.flags import FOLDER, STANDARD_OUTPUT, Command, WrittenFile
from amp_rewrite.console import write_escaped
from amp_rewrite.errors import OptionError
from amp_rewrite.files import destination, staging
from amp_rewrite.files.file_identity import is_same
from amp_rewrite.model import external_data, output_paths
from amp_rewrite.model.output_paths import Kind
from amp_rewrite.numerics import half
from amp_rewrite.rewriting import restore

_RESULT, _OUTPUT = "the result", "--output"


class WritingCommand(Command):
    """A command whose files are checked before it runs: each can be written, is no input and no other output,
    and, without --force, replaces nothing that no such command wrote. They move into place after the verdict:
    an error or an interrupt leaves all files unchanged.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Check flags and files, then run the command; raise OptionError and OutputError."""
        if ctx.params.get("json_") == STANDARD_OUTPUT:
            return self._invoke_piped(ctx)
        outputs = list(_outputs(self.params, ctx.params))
        _refuse(outputs, list(_inputs(self.params, ctx.params)), ctx.params)
        places = [file.path for file in outputs] if "output" in ctx.params else []
        if ctx.params.get("in_place"):
            places.append(ctx.params["model"])
        with staging.transaction(Path(os.path.realpath(place)) for place in places) as files:
            try:
                ended = super().invoke(ctx)
            except click.exceptions.Exit:
                files.commit()
                raise
            files.commit()
            return ended

    def _invoke_piped(self, ctx: click.Context) -> Any:
        """Run the command with its JSON on standard output, once it is complete, and nothing else there."""
        with tempfile.TemporaryDirectory() as folder:
            file = ctx.params["json_"] = Path(folder) / STANDARD_OUTPUT
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    return WritingCommand.invoke(self, ctx)  # of one model
            finally:
                if file.is_file():
                    write_escaped(file.read_text())


@dataclass(frozen=True, slots=True)
class _File:
    """A path, and the flag, argument or file that names it."""

    by: str
    path: Path

    @property
    def is_result(self) -> bool:
        return self.by in (_OUTPUT, _RESULT)


def _refuse(outputs: Sequence[_File], inputs: Sequence[_File], values: Mapping[str, Any]) -> None:
    """Raise OptionError for the first output that cannot stand where it is named."""
    for file in outputs:
        destination.resolve(file.path)
    for at, file in enumerate(outputs):
        others = (*inputs, *outputs[at + 1 :])
        clash = next((other.by for other in others if other.by != file.by and _is_one_place(file, other)), "")
        if not (file.is_result and clash == "MODEL"):  # `output_paths` refuses that
            results = (result for result in outputs if result.is_result and not file.is_result)
            clash = clash or next(
                (f"the weights of {each.by}" for each in results if _is_data(file, each)), ""
            )
            if clash:
                by = _RESULT if file.is_result and _is_one_of_many() else file.by
                problem = f"{by} and {clash} both name {file.path}"
                raise OptionError(problem, remedy=f"choose {_other_place(file)}")
    for file in outputs if not values.get("force") else ():
        is_source = file.is_result and is_same(file.path, values["model"])  # as above
        problem = output_paths.foreign(file.path, Kind.MODEL if file.is_result else Kind.REPORT)
        if problem and not is_source:
            remedy = f"choose {_other_place(file)}, or replace it with --force"
            raise OptionError(f"{file.path} {problem}", remedy=remedy)


def _is_one_place(file: _File, other: _File) -> bool:
    """Whether two files, existing or not, are one, also on case-insensitive systems."""
    folded = {str(path.resolve()).casefold() for path in (file.path, other.path)}
    return is_same(file.path, other.path) or len(folded) == 1


def _is_data(file: _File, result: _File) -> bool:
    """Whether a file has the name of one with weights of a result, or is one that is there."""
    is_beside = file.path.parent.resolve() == result.path.parent.resolve()
    is_named_so = is_beside and external_data.number_of(file.path.name, result.path) is not None
    return is_named_so or any(is_same(file.path, each) for each in external_data.referenced_by(result.path))


def _other_place(file: _File) -> str:
    """Return a remedy that names the flag for another output path."""
    if file.is_result and _is_one_of_many():
        return "another folder with -o"
    return "another place with -o" if file.by == _RESULT else f"another place for {file.by}"


def _is_one_of_many() -> bool:
    """Whether --output names the folder of the results."""
    return bool(click.get_current_context().meta.get(FOLDER))


def _outputs(params: Sequence[click.Parameter], values: Mapping[str, Any]) -> Iterator[_File]:
    """Yield the outputs of the command, with the default names of its result."""
    yield from _named(params, values, is_output=True)
    is_placed = any(values.get(name) for name in ("output", "in_place", "dry_run"))
    if "output" in values and not is_placed and values["model"].name and os.path.exists(values["model"]):  # noqa: PTH110 - False for what is not a valid path
        names = [output_paths.default(values["model"], to) for to in _halves(values)]
        yield from (_File(_RESULT, name) for name in names or [restore.default(values["model"])])


def _halves(values: Mapping[str, Any]) -> Iterable[half.Half]:
    """Return the half types that a result may have: all, where a plan or a policy decides."""
    named = half.BY_NAME.get(values.get("to", ""))
    if named is None or values.get("plan"):
        return half.BY_NAME.values() if "to" in values else ()
    return (named,)


def _inputs(params: Sequence[click.Parameter], values: Mapping[str, Any]) -> Iterator[_File]:
    """Yield the inputs of the command, with the weights of its models."""
    for file in _named(params, values, is_output=False):
        yield file
        if not file.by.startswith("--"):
            weights = external_data.referenced_by(file.path)
            yield from (_File(f"the weights of {file.by}", path) for path in weights)


def _named(
    params: Iterable[click.Parameter], values: Mapping[str, Any], *, is_output: bool
) -> Iterator[_File]:
    """Yield the paths that arguments and flags name."""
    for param in params:
        by = (param.name or "").upper() if isinstance(param, click.Argument) else max(param.opts, key=len)
        value = values.get(param.name or "")
        for each in value if isinstance(value, tuple) else (value,):
            path = getattr(each, "path", each)
            if isinstance(path, Path) and isinstance(param.type, WrittenFile) is is_output:
                yield _File(f"{by} {getattr(each, 'format', '')}".rstrip(), path)
