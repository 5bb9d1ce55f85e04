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

from amp_rewrite.cli.flags import (
    STANDARD_OUTPUT,
    WRITTEN,
    Command,
    Need,
    Record,
    Saved,
    WrittenFile,
    flag,
    save,
)
from amp_rewrite.console import write_escaped
from amp_rewrite.errors import OptionError
from amp_rewrite.files import staging
from amp_rewrite.files.reading import is_same
from amp_rewrite.model import external_data, output_paths, writing
from amp_rewrite.model.output_paths import FileKind
from amp_rewrite.numerics import half
from amp_rewrite.rewriting import restore

# ---- the records of these files


@dataclass(frozen=True)
class ReportFlags(Record, title="Files", argument="files"):
    """The report of a command, and whether files of others are replaced."""

    json_: Path | None = flag("--json FILE", "Write the report as JSON. - is standard output.", WRITTEN)
    force: bool = flag(
        "--force",
        "Overwrite files that amp-rewrite did not create: models, their weights, and others.",
        short="Overwrite files that amp-rewrite did not create.",
    )

    def report(self, content: Mapping[str, Any]) -> None:
        """Write the report where one is requested; raises OutputError."""
        if self.json_ is not None:
            writing.write_json(content, self.json_)


_HTML = "Write an HTML report. It has the graph, why each node has its precision, coverage, and errors."


@dataclass(frozen=True)
class PageFile(ReportFlags):
    """A report, and an HTML page."""

    html: Path | None = flag("--html FILE", _HTML, WRITTEN)


_OUTPUT = "Where to write; beside the model, with the type in its name, if not given."


@dataclass(frozen=True)
class OutputFlags(ReportFlags):
    """A result, and a report."""

    output: Path | None = flag("--output FILE", _OUTPUT, WRITTEN)


@dataclass(frozen=True)
class ResultFlags(OutputFlags, PageFile):
    """A result, and files beside it."""

    def saved(self, format_: str) -> Path | None:
        """Return the file of a format of `--save`, if it is named."""
        return next((each.path for each in getattr(self, "save", ()) if each.format == format_), None)

    @property
    def names(self) -> str:
        """The names of all files beside the result, for the user."""
        saved = (each.path for each in getattr(self, "save", ()))
        files = (self.json_, *saved, self.html)
        return ", ".join(str(file) for file in files if file and file.name != STANDARD_OUTPUT.name)


@dataclass(frozen=True)
class TuneFiles(ResultFlags):
    """The files of a search."""

    save: tuple[Saved, ...] = save({"plan": "the plan, for --plan"}, {"Analysis.save_plan": "plan=FILE"})


@dataclass(frozen=True)
class RewriteFiles(ResultFlags):
    """The files of a rewrite: of several models, or in a folder, each result keeps its name and its place."""

    output: Path | None = flag(
        "--output FILE|FOLDER",
        f"{_OUTPUT} In a folder, or of several models, each keeps its name and its place.",
        short="Where to write; beside the model if not given.",
        kind=WrittenFile(takes_folder=True),
    )
    in_place: bool = flag("--in-place", "Overwrite the model itself.")
    dry_run: bool = flag("--dry-run", "Print the plan, and write no model.")
    save: tuple[Saved, ...] = save(
        {"plan": "the plan, for --plan", "observed": "the ranges that --calibrate saw, for --calibrate"},
        {"Analysis.save_plan": "plan=FILE", "Observed.save": "observed=FILE"},
        needs=(Need("--calibrate", word="observed"),),
    )


_NOT_DRY = (Need("--dry-run", "writes no model"),)


@dataclass(frozen=True)
class TrainFiles(ResultFlags):
    """The files of a rewritten train step."""

    output: Path | None = flag("--output FILE", _OUTPUT, WRITTEN, needs=_NOT_DRY)
    html: Path | None = flag("--html FILE", _HTML, WRITTEN, needs=_NOT_DRY)
    dry_run: bool = flag("--dry-run", "Say what the step is and what stays float32; write no model.")


@dataclass(frozen=True)
class CoverageFiles(ReportFlags):
    """The files of a coverage."""

    save: tuple[Saved, ...] = save(
        {
            "markdown": "for the summary of a CI job",
            "junit": "one test case a rule",
            "baseline": "for the rule of that name",
        },
        {"coverage_rules.save_baseline": "baseline=FILE"},
    )


# ---- their checks


class WritingCommand(Command):
    """A command whose files are checked before it runs: each can be written, is no input and no other output,
    and, without --force, replaces nothing that no such command wrote. They move into place after the verdict:
    an error or an interrupt leaves all files unchanged.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Check flags and files, then run the command; raise OptionError and OutputError."""
        if ctx.params.get("json_") == STANDARD_OUTPUT:
            return self._invoke_piped(ctx)
        _refuse(self.params, ctx.params)
        with staging.transaction(map(_real, self._places(ctx.params))) as files:
            try:
                ended = super().invoke(ctx)
            except click.exceptions.Exit:
                files.commit()
                raise
            files.commit()
            return ended

    def _places(self, values: Mapping[str, Any]) -> Iterator[Path]:
        """Yield where files of a command with a result may go: they move into place together."""
        if "output" in values:
            yield from (
                file.path for file in (*_named(self.params, values, is_output=True), *_defaults(values))
            )
            yield from [values["model"]] if values.get("in_place") else []

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


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


@dataclass(frozen=True, slots=True)
class _File:
    """A path, and the flag or argument that names it."""

    by: str
    path: Path


def _refuse(params: Sequence[click.Parameter], values: Mapping[str, Any]) -> None:
    """Raise OptionError for an output that is an input or another output, or would replace what is no report;
    the library looks at the place of a result.
    """
    inputs, outputs = (
        list(_named(params, values, is_output=False)),
        list(_named(params, values, is_output=True)),
    )
    weights = [
        _File(f"the weights of {file.by}", path)
        for file in inputs
        if not file.by.startswith("--")
        for path in external_data.referenced_by(file.path)
    ]
    results = [file for file in outputs if file.by == "--output"] or list(_defaults(values))
    for at, file in enumerate(outputs):
        staging.resolve(file.path)
        others = (*inputs, *weights, *outputs[at + 1 :], *(results if file not in results else ()))
        clash = next((other.by for other in others if _is_one_place(file, other)), "")
        if not clash and file not in results:
            clash = next((f"the weights of {each.by}" for each in results if _is_data(file, each)), "")
        remedy = f"choose another place for {file.by}"
        if clash and (file.by, clash) != ("--output", "MODEL"):  # which the library refuses
            raise OptionError(f"{file.by} and {clash} both name {file.path}", remedy=remedy)
        problem = (
            "" if file in results or values["force"] else output_paths.foreign(file.path, FileKind.REPORT)
        )
        if problem:
            raise OptionError(f"{file.path} {problem}", remedy=f"{remedy}, or replace it with --force")


def _is_one_place(file: _File, other: _File) -> bool:
    """Whether two files, existing or not, are one, also on case-insensitive systems."""
    folded = {str(path.resolve()).casefold() for path in (file.path, other.path)}
    return is_same(file.path, other.path) or len(folded) == 1


def _is_data(file: _File, result: _File) -> bool:
    """Whether a file is named like one with weights of a result."""
    name, is_beside = file.path.name.casefold(), file.path.parent.resolve() == result.path.parent.resolve()
    return is_beside and name.startswith(f"{result.path.name.casefold()}.") and name.endswith(".data")


def _defaults(values: Mapping[str, Any]) -> Iterator[_File]:
    """Yield the places that a result has without --output, of any half type."""
    if "output" in values and values["model"].name:
        names = (output_paths.default(values["model"], to) for to in half.BY_NAME.values())
        yield from (_File("the result", path) for path in (*names, restore.default(values["model"])))


def _named(
    params: Iterable[click.Parameter], values: Mapping[str, Any], *, is_output: bool
) -> Iterator[_File]:
    """Yield the paths that arguments and flags name."""
    for param in params:
        by = (param.name or "").upper() if isinstance(param, click.Argument) else max(param.opts, key=len)
        value = values.get(param.name or "")
        for each in value if isinstance(value, tuple) else (value,):
            path = each.path if isinstance(each, Saved) else each
            if isinstance(path, Path) and isinstance(param.type, WrittenFile) is is_output:
                yield _File(f"{by} {each.format}" if isinstance(each, Saved) else by, path)
