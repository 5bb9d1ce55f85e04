"""Checks before any work: files that cannot be written or conflict, and flags without effect beside others.

With `--dry-run` every flag of the real run is accepted, except `--require verify` and `tensorrt`.
"""

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

from amp_rewrite.cli.flag_builders import FOLDER, STANDARD_OUTPUT, SectionedCommand, WrittenFile, written
from amp_rewrite.console import write_escaped
from amp_rewrite.coverage import coverage_rules
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.files.reading import is_same
from amp_rewrite.model import external_data, output_paths
from amp_rewrite.model.output_paths import Kind
from amp_rewrite.numerics import half
from amp_rewrite.policy import operator_lists
from amp_rewrite.rewriting import restore

_RESULT = "the result"
_OUTPUT = "--output"
_MODEL = "MODEL"


class WritingCommand(SectionedCommand):
    """A command that checks its WRITTEN files and flags before it runs.

    It refuses files that cannot be written, that coincide with each other or with an input, and, without
    --force, models and weights that no such command wrote. Ineffective flags are refused as well. The outputs
    of a command that writes a model are committed together, after the verdict: an error or an interrupt
    leaves all files unchanged.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if any(isinstance(param.type, WrittenFile) for param in self.params):
            help_ = (
                "Replace what amp-rewrite did not write: models, their weights, and files of another kind."
            )
            self.params.append(click.Option(["--force"], is_flag=True, help=help_))

    def invoke(self, ctx: click.Context) -> Any:
        """Check flags and files, then run the command; raise OptionError and OutputError."""
        refuse_ineffective_flags(ctx)
        if ctx.params.get("json_") == STANDARD_OUTPUT:
            return self._invoke_piped(ctx)
        outputs = list(_output_files(self.params, ctx.params))
        for file in outputs:
            staging.resolve(file.path)
        if outputs:
            _refuse_conflicts(outputs, list(_input_files(self.params, ctx.params)))
        if not ctx.params.pop("force", False):
            _refuse_foreign(outputs, ctx.params.get("model"))
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
    is_model: bool = False


def _refuse_conflicts(outputs: Sequence[_File], inputs: Sequence[_File]) -> None:
    results = [file for file in outputs if file.by in (_OUTPUT, _RESULT)]
    replaced = [weights for result in results for weights in _weights(result)]
    for at, file in enumerate(outputs):
        others = (*inputs, *(replaced if file not in results else ()))
        clash = next((other for other in others if is_same(file.path, other.path)), None)
        clash = clash or next((other for other in outputs[at + 1 :] if _is_one_place(file, other)), None)
        if clash is not None and (file.by, clash.by) != (_OUTPUT, _MODEL):  # `output_paths` refuses that
            raise _conflict(file, clash.by)
        for result in results:
            beside = file.path.parent.resolve() == result.path.parent.resolve()
            if (
                beside
                and file.by != result.by
                and external_data.number_of(file.path.name, result.path) is not None
            ):
                raise _conflict(file, f"the weights of {result.by}")


def _refuse_foreign(outputs: Iterable[_File], source: object) -> None:
    """Raise OptionError for an output that would replace what no such command wrote.

    The source itself is refused by `output_paths`.
    """
    for file in outputs:
        kind = Kind.MODEL if file.by in (_OUTPUT, _RESULT) else Kind.REPORT
        is_source = isinstance(source, Path) and is_same(file.path, source)
        if not is_source and (problem := output_paths.foreign(file.path, kind)):
            remedy = f"choose {_other_place(file)}, or replace it with --force"
            raise OptionError(f"{file.path} {problem}", remedy=remedy)


def _is_one_place(file: _File, other: _File) -> bool:
    """Whether two outputs, existing or not, are one file, also on case-insensitive systems."""
    if file.by == other.by:
        return False
    folded = (str(path.resolve()).casefold() for path in (file.path, other.path))
    return is_same(file.path, other.path) or len(set(folded)) == 1


def _conflict(file: _File, other: str) -> OptionError:
    by = _RESULT if file.by == _OUTPUT and _is_one_of_many() else file.by
    return OptionError(f"{by} and {other} both name {file.path}", remedy=f"choose {_other_place(file)}")


def _other_place(file: _File) -> str:
    """Return a remedy that names the flag for another output path."""
    if file.by in (_OUTPUT, _RESULT) and _is_one_of_many():
        return "another folder with -o"
    return "another place with -o" if file.by == _RESULT else f"another place for {file.by}"


def _is_one_of_many() -> bool:
    """Whether --output names the folder of the results."""
    return bool(click.get_current_context().meta.get(FOLDER))


def _input_files(params: Sequence[click.Parameter], values: Mapping[str, Any]) -> Iterator[_File]:
    """Yield the inputs of the command: files that its arguments name, and files that those refer to."""
    for file in _flag_files(params, values, written=False):
        yield from (file, *_behind(file))
    for name in values.get("list_", ()):
        with contextlib.suppress(AmpRewriteError):  # reading the list raises it again
            yield from (_File("--list", path) for path in operator_lists.load(name).files)


def _output_files(params: Sequence[click.Parameter], values: Mapping[str, Any]) -> Iterator[_File]:
    """Yield the outputs of the command, including default names."""
    yield from _flag_files(params, values, written=True)
    if _has_default_name(values):
        model = values["model"]
        names = [output_paths.default(model, to) for to in _halves(values)] or [restore.default(model)]
        yield from (_File(_RESULT, name) for name in names)


def _halves(values: Mapping[str, Any]) -> Iterable[half.Half]:
    """Return the half types that the result may have: all, where a plan or a policy decides."""
    if "to" not in values or values.get("plan") or values["to"] not in half.BY_NAME:
        return half.BY_NAME.values() if "to" in values else ()
    return (half.named(values["to"]),)


def _has_default_name(values: Mapping[str, Any]) -> bool:
    """Whether the command is a rewrite whose result is named after its existing model."""
    has_place = any(values.get(name) for name in ("output", "in_place", "dry_run"))
    if "output" not in values or has_place:
        return False
    model: Path = values["model"]
    return bool(model.name) and os.path.exists(model)  # noqa: PTH110 - False for what is not a valid path


def _flag_files(
    params: Sequence[click.Parameter], values: Mapping[str, Any], *, written: bool
) -> Iterator[_File]:
    for param in params:
        value = values.get(param.name or "")
        if isinstance(param.type, WrittenFile) != written:
            continue
        is_argument = isinstance(param, click.Argument)
        by = (param.name or "").upper() if is_argument else max(param.opts, key=len)
        for each in value if isinstance(value, tuple) else (value,):
            path = getattr(each, "path", each)
            if isinstance(path, Path):
                yield _File(f"{by} {getattr(each, 'format', '')}".rstrip(), path, is_model=is_argument)


def _behind(file: _File) -> Iterable[_File]:
    """Return the files behind an input: those in a folder, weights, or the baseline of rules."""
    if file.path.is_dir():
        return [_File(file.by, path) for pattern in ("*", "*/*") for path in file.path.glob(pattern)]
    if file.by == "--rules":
        return [_File(file.by, path) for path in _baseline(file.path)]
    return _weights(file) if file.is_model else ()


def _weights(model: _File) -> Iterable[_File]:
    """Return the external data files of a model; empty for any other file."""
    return (_File(f"the weights of {model.by}", path) for path in external_data.referenced_by(model.path))


def _baseline(rules: Path) -> Iterator[Path]:
    with contextlib.suppress(AmpRewriteError):  # reading the rules raises it again
        baseline = coverage_rules.collect((rules,)).baseline
        yield from (Path(baseline),) if baseline else ()


@dataclass(frozen=True, slots=True)
class Ineffective:
    """A rule: `flags` have no effect beside another flag, for the reason `does`, or, if that is empty,
    without it, unless one of `unless` is given. Without a `command` it is for all that have these flags.
    """

    beside: str
    does: str
    flags: tuple[str, ...]
    unless: tuple[str, ...] = ()
    command: str | None = None

    def refuse(self, explicit: frozenset[str]) -> None:
        """Raise OptionError where one of the flags is given without effect."""
        idle = " and ".join(flag for flag in self.flags if flag in explicit)
        applies = (self.beside in explicit) is bool(self.does) and explicit.isdisjoint(self.unless)
        if not idle or not applies:
            return
        verb = "have" if " and " in idle else "has"
        if not self.does:
            problem = f"{idle} {verb} no effect without {self.beside}"
            raise OptionError(problem, remedy=f"add {self.beside}, or leave out {idle}")
        instead = f", or add {' or '.join(self.unless)}" if self.unless else ""
        raise OptionError(
            f"{idle} {verb} no effect with {self.beside}, which {self.does}",
            remedy=f"leave out {idle}, or {self.beside}{instead}",
        )


_NO_VERIFY = "--skip verify"
_TENSORRT = "--provider tensorrt"
_OF_RUNS = ("--data", "--seed", "--samples")

INEFFECTIVE = (
    Ineffective(
        _NO_VERIFY,
        "compares nothing",
        ("--tolerance", "--metric", "--provider", "--per-node", "--require verify", "--skip repair"),
    ),
    Ineffective(_NO_VERIFY, "runs no model", ("--data", "--seed", "--samples")),
    Ineffective(_NO_VERIFY, "runs no model", ("--custom-ops", "--steps", "--timeout"), ("--calibrate",)),
    Ineffective("--dry-run", "makes no result", ("--require verify", "--require tensorrt")),
    Ineffective("--quiet", "prints errors only", ("--verbose",)),
    Ineffective("--data", "supplies the inputs", ("--dim", "--seed", "--samples")),
    Ineffective("--calibrate", "", ("--save-observed", "--executor"), command="rewrite"),
    Ineffective("--dry-run", "writes no model", ("--output", "--html"), command="train"),
    Ineffective(_TENSORRT, "runs nothing", ("--run", "--custom-ops", *_OF_RUNS), command="placement"),
    Ineffective("--run", "", (*_OF_RUNS, "--dim", "--timeout"), (_TENSORRT,), command="placement"),
)


def refuse_ineffective_flags(context: click.Context) -> None:
    """Raise OptionError for a flag of the command that has no effect beside another one (INEFFECTIVE)."""
    explicit: set[str] = set()
    for name, flag in written(context, context.params).items():
        value = context.params[name]
        explicit.update(
            (flag, *(f"{flag} {each}" for each in (value if isinstance(value, tuple) else (value,))))
        )
    for rule in INEFFECTIVE:
        if rule.command in (None, context.command.name):
            rule.refuse(frozenset(explicit))
