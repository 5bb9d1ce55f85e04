"""`amp-rewrite MODEL`: the main job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from amp_rewrite import model_io, pipeline, plan_files, writing
from amp_rewrite.cli.feed_flags import feed_flags
from amp_rewrite.cli.flags import Asked, decision_flags
from amp_rewrite.cli.json_files import json_flag, write_json
from amp_rewrite.cli.judging import Judging, judging_flags
from amp_rewrite.cli.progress import shown_progress, tell
from amp_rewrite.cli.storage_flag import external_data_flag
from amp_rewrite.errors import AmpRewriteError, ModelError
from amp_rewrite.options import ExternalData
from amp_rewrite.reporting import terminal
from amp_rewrite.reporting.report import Report
from amp_rewrite.running.feeds import Data
from amp_rewrite.running.sessions import Runnable
from amp_rewrite.running.verification import Verdict


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write; MODEL_fp16.onnx (or _bf16) beside the model if not given.",
)
@click.option("--in-place", is_flag=True, help="Write over the model itself.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and write no model.")
@click.option(
    "--save-plan",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the plan as JSON; --plan carries it out again.",
)
@json_flag("report")
@external_data_flag
@click.option("--no-check", is_flag=True, help="Do not run onnx's checker on the result.")
@click.option("--no-verify", is_flag=True, help="Do not compare the result with the model.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@decision_flags
@feed_flags
@judging_flags
def rewrite(
    model: Path,
    output: Path | None,
    in_place: bool,
    dry_run: bool,
    save_plan: Path | None,
    json_: Path | None,
    external_data: ExternalData,
    no_check: bool,
    no_verify: bool,
    quiet: bool,
    asked: Asked,
    data: Data,
    judging: Judging,
) -> None:
    """Rewrite MODEL to mixed precision, and compare the result with it.

    Exit code 1 when the result is not valid or not close; it is written all the same.
    """
    console = terminal.plain_console(quiet=quiet)
    if dry_run or save_plan is not None:
        planned = _plan(console, model, asked, save_plan, show=dry_run)
        if dry_run and json_ is not None:
            _write_json(json_, planned, None)
    if dry_run:
        return
    options = replace(asked.options, check=not no_check, external_data=external_data)
    verdict: Judged = None
    with shown_progress(quiet=quiet) as progress:
        original = model if no_verify else _original(model, in_place=in_place)
        result = pipeline.rewrite(
            model, options, output=output, in_place=in_place, replay=asked.replay, progress=progress
        )
        if result.report.changed and not no_verify:
            tell(progress, "verify")
            verdict = judging.try_to_judge(original, result.model, data, options.borders)
    if json_ is not None:
        _write_json(json_, result.report, verdict)
    terminal.print_summary(console, result.report, str(result.model), _hints(model, result.report))
    _print_verdict(console, verdict, judging)
    if not result.report.ok or (isinstance(verdict, Verdict) and not verdict.ok):
        raise click.exceptions.Exit(1)


Judged = Verdict | AmpRewriteError | None
"""A verdict, or why there is none; None when none was asked for."""


def _original(model: Path, *, in_place: bool) -> Runnable | AmpRewriteError:
    """What to compare the result with: what is overwritten is read before."""
    if not in_place:
        return model
    if model_io.load(model).external:
        return ModelError(
            "--in-place replaces a model with external data",
            remedy="write it beside with -o, and compare the two",
        )
    return model_io.load_proto(model)


def _write_json(path: Path, report: Report, verdict: Judged) -> None:
    judged = verdict.to_json() if isinstance(verdict, Verdict) else None
    if isinstance(verdict, AmpRewriteError):
        judged = {"not_compared": str(verdict)}
    write_json({**report.to_json(), "verification": judged}, path)


def _print_verdict(console: Console, verdict: Judged, judging: Judging) -> None:
    """A verdict is printed; one that is bad also when all else is quiet."""
    if isinstance(verdict, AmpRewriteError):
        console.print(Text(f"not compared with the original: {verdict}"))
    elif verdict is not None:
        loud = console if verdict.ok else terminal.plain_console(stderr=console.quiet)
        terminal.print_verdict(loud, verdict, per_node=judging.per_node)


def _plan(console: Console, model: Path, asked: Asked, save_plan: Path | None, *, show: bool) -> Report:
    """Makes the plan alone, to print it or to save it, and reports on it."""
    with shown_progress(quiet=console.quiet) as progress:
        made = asked.analyze(model, progress)
    if save_plan is not None:
        text = plan_files.dump(made.graph, made.painting, made.plan, made.loaded.model, made.options)
        writing.write(text.encode(), save_plan)
    if show:
        terminal.print_plan(console, made.plan)
        halves = sum(map(made.painting.is_half, range(len(made.graph.units))))
        console.print(
            f"{halves:,} of {len(made.graph.units):,} units in {made.plan.half.name}, "
            f"{len(made.plan.casts):,} Casts; no model was written"
        )
    return made.report()


def _hints(model: Path, report: Report) -> Iterator[str]:
    """What to do next, as commands that can be pasted."""
    name = shlex.quote(str(model))
    if report.nodes.full or report.nodes.mixed:
        yield f"amp-rewrite explain {name}   # why nodes stay float32"
