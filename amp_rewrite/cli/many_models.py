"""Several models for one command: paths, folders and patterns such as models/*.onnx."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from amp_rewrite import many
from amp_rewrite.cli.exit_codes import BAD_INPUT, FAILED
from amp_rewrite.cli.flags import FOLDER, PATH, written
from amp_rewrite.cli.output_files import WritingCommand
from amp_rewrite.console import Console, Styled
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.many import Ended, Found, Job, JobRecord, Line
from amp_rewrite.model import output_paths

models_argument: Any = click.argument("model", nargs=-1, required=True, type=PATH, metavar="MODEL...")
"""One or more models, as `model`: a tuple of paths."""

OF_ONE = ("html", "save")
"""Flags that name a file of one model."""


class ManyModelsCommand(WritingCommand):
    """A command on one model, which runs once for each where several are named, in a process of its own.

    The results of several go to the folder that `--output` names, with a line of JSON for each; those that
    are done there already are skipped. One that fails does not stop the others; the exit code is the highest
    of all.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, which are kept for the commands on each model."""
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command for each model; raise OptionError for flags that name a file of one."""
        paths: tuple[Path, ...] = ctx.params["model"]
        if _ends_in_output(ctx, paths):
            paths, ctx.params["output"] = paths[:1], paths[1]
        is_single = len(paths) == 1 and not many.is_pattern(paths[0]) and not many.is_folder(paths[0])
        if is_single and not ctx.meta.get(FOLDER):
            ctx.params["model"] = paths[0]
            super().invoke(ctx)
            return
        folder = _folder(ctx, paths)
        models = many.find(paths, folder)
        _refuse(ctx, models, folder)
        if len(models) == 1 and is_single and folder is not None:
            ctx.params |= {"model": models[0].model, "output": folder / models[0].place}
            super().invoke(ctx)
            return
        ctx.set_parameter_source("executor", ParameterSource.DEFAULT)  # it runs no samples here
        with ctx.scope(cleanup=False):
            arguments = self.read(ctx)  # raises what is wrong with the flags once
        jobs = [Job(each.model, folder and folder / each.place, _flags(ctx, paths)) for each in models]
        console = Console(quiet=ctx.params["quiet"])
        with arguments["workers"].opened() as executor:
            place = ctx.params["json_"] or (folder and folder / many.RECORD)
            record = JobRecord(place, force=ctx.params["force"])
            lines = many.run_all(jobs, record, executor, partial(_print, console))
        _tell(console, lines)
        ctx.exit(max(line["exit_code"] for line in lines))


_WORDS = "amp_rewrite.words"
"""Where a context has the arguments as they were written."""


def _flags(ctx: click.Context, paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the arguments without the models, `--executor` and `--json`."""
    words: list[str] = [word for word in ctx.meta[_WORDS] if word != "--"]
    for path in paths:
        words.remove(next(word for word in words if Path(word) == path))
    for flag in ("--executor", "--json"):
        while flag in words:
            at = words.index(flag)
            del words[at : at + 2]
    return tuple(word for word in words if not word.startswith(("--executor=", "--json=")))


def _print(console: Console, ended: Ended) -> None:
    console.print(Styled(ended.line["model"], "bold"))
    if ended.printed is None:
        console.print(f"done before: {ended.line['result']}")
    for text, where in zip(ended.printed or (), (Console(), Console(stderr=True)), strict=False):
        for line in text.splitlines():
            where.whole(line)


def _folder(ctx: click.Context, paths: Sequence[Path]) -> Path | None:
    """Return the folder for the results of several models, None without one.

    Raises ModelError for a folder of models, and OptionError for several, whose result is one file.
    """
    folder: Path | None = ctx.params["output"]
    is_file = folder is not None and not ctx.meta.get(FOLDER) and folder.suffix == ".onnx"
    directory = next(filter(many.is_folder, paths), None) if folder is None or is_file else None
    if directory is not None:
        remedy = "name the model in it, or a folder for the results with -o FOLDER"
        raise ModelError("is a folder", where=directory, remedy=remedy)
    if is_file:
        problem = f"--output {folder} is for one model"
        raise OptionError(problem, remedy="name a folder for the results with -o")
    ctx.meta[FOLDER] = folder is not None
    return folder


def _ends_in_output(ctx: click.Context, paths: Sequence[Path]) -> bool:
    """Whether the second of two paths is the place of the result: it is free, or has a result of the first.

    A second model is replaced with --force alone.
    """
    if len(paths) != 2 or ctx.params["output"] or ctx.params["in_place"] or any(map(many.is_pattern, paths)):
        return False
    model, output = paths
    if not os.path.lexists(output):
        return True
    is_writing = output.is_file() and not ctx.params["dry_run"]
    return is_writing and (ctx.params["force"] or output_paths.is_result_of(model, output))


def _refuse(ctx: click.Context, models: Sequence[Found], folder: Path | None) -> None:
    flags = written(ctx, OF_ONE) if len(models) > 1 or folder is None else {}
    if flags:
        raise OptionError(f"{next(iter(flags.values()))} is for one model", remedy="leave it out")
    if folder is not None and (ctx.params["in_place"] or ctx.params["dry_run"]):
        flag = "--in-place" if ctx.params["in_place"] else "--dry-run"
        raise OptionError(f"--output {folder} has no effect with {flag}", remedy="leave out one of them")
    if folder is None and not (ctx.params["in_place"] or ctx.params["dry_run"]):
        if len(models) == 1:
            raise OptionError(f"{models[0].model} is named twice", remedy="overwrite it with --in-place")
        first = " and ".join(str(each.model) for each in models[:2])
        remedy = "name it with -o FOLDER, or the result of one model with -o"
        raise OptionError(f"{first} need a folder for their results", remedy=remedy)
    missing = next((each.model for each in models if not os.path.lexists(each.model)), None)
    if missing is not None and ctx.params["in_place"]:  # before any other is overwritten
        remedy = "check the path; a place for the result goes without --in-place"
        raise ModelError("there is no such file", where=missing, remedy=remedy)
    _refuse_one_place(models)


def _refuse_one_place(models: Sequence[Found]) -> None:
    places: dict[str, Path] = {}
    for each in models:
        other = places.setdefault(str(each.place).casefold(), each.model)
        if other != each.model:
            problem = f"{other} and {each.model} would both become {each.place}"
            raise OptionError(problem, remedy="name the folder that both are in, which keeps them apart")


def _tell(console: Console, lines: Sequence[Line]) -> None:
    """Print the number of models that succeeded, and the others by the meaning of their exit codes."""
    console.print()
    codes = [line["exit_code"] for line in lines]
    tally = f"{codes.count(0):,} of {len(lines):,} models done"
    failures = {
        words: [line["model"] for line in lines if line["exit_code"] == failure]
        for failure, words in _FAILURES.items()
    }
    groups = (f"; {words}: {', '.join(models)}" for words, models in failures.items() if models)
    console.print("".join((tally, *groups)))


_FAILURES = {FAILED: "not valid, not half, or not shown to be close", BAD_INPUT: "no result"}
