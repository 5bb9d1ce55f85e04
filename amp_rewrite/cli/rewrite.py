"""`amp-rewrite MODEL`: the main job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from amp_rewrite import plan_files, writing
from amp_rewrite.cli.feed_flags import feed_flags
from amp_rewrite.cli.flags import Asked, decision_flags
from amp_rewrite.cli.job import Job, original
from amp_rewrite.cli.json_files import json_flag, write_json
from amp_rewrite.cli.judging import Judging, judging_flags
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.storage_flag import external_data_flag
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.options import ExternalData, Level
from amp_rewrite.pipeline import Analysis
from amp_rewrite.proving import Judged, Looking, Proof
from amp_rewrite.reporting import terminal
from amp_rewrite.reporting.report import Report
from amp_rewrite.running.feeds import Data
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
@click.option(
    "--observe",
    type=click.Choice([looking.value for looking in Looking]),
    default=Looking.ON_FAILURE.value,
    show_default=True,
    help="When to look at all values of a float32 run, and keep in float32 what comes near half's limits.",
)
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
    observe: str,
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
    looking = _looking(asked, observe)
    with shown_progress(quiet=quiet) as progress:
        job = Job(
            model=model,
            original=None if no_verify or dry_run else original(model, in_place=in_place),
            options=replace(asked.options, check=not no_check, external_data=external_data),
            replay=asked.replay,
            output=output,
            in_place=in_place,
            data=data,
            judging=judging,
            on_plan=None if save_plan is None else partial(_save, save_plan),
            progress=progress,
        )
        done = job.plan(looking) if dry_run else job.run(looking)
    if isinstance(done, Analysis):
        _tell_plan(console, done, json_)
    else:
        _tell(console, model, done, json_, judging)


def _looking(asked: Asked, observe: str) -> Looking:
    """When to look at values; OptionError where they have no say."""
    settled = asked.replay is not None or asked.options.level is Level.UNSAFE_FORCE_ALL
    if settled and observe == Looking.ALWAYS.value:
        why = (
            "--plan decides everything" if asked.replay else f"--level {asked.options.level.value} forces all"
        )
        raise OptionError(f"{why}, whatever was observed", remedy="leave out --observe")
    return Looking.NEVER if settled else Looking(observe)


def _save(path: Path, made: Analysis) -> None:
    text = plan_files.dump(made.graph, made.painting, made.plan, made.loaded.model, made.options)
    writing.write(text.encode(), path)


def _tell(console: Console, model: Path, proof: Proof, json_: Path | None, judging: Judging) -> None:
    """Reports on a result; exit code 1 where it is not valid or not close."""
    report, judged = proof.result.report, proof.judged
    if json_ is not None:
        _write_json(json_, report, judged)
    terminal.print_summary(console, report, str(proof.result.model), _hints(model, report))
    _print_verdict(console, judged, judging)
    if not report.ok or (isinstance(judged, Verdict) and not judged.ok):
        raise click.exceptions.Exit(1)


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


def _tell_plan(console: Console, made: Analysis, json_: Path | None) -> None:
    """Reports on a plan that is not carried out."""
    if json_ is not None:
        _write_json(json_, made.report(), None)
    terminal.print_plan(console, made.plan)
    halves = sum(map(made.painting.is_half, range(len(made.graph.units))))
    console.print(
        f"{halves:,} of {len(made.graph.units):,} units in {made.plan.half.name}, "
        f"{len(made.plan.casts):,} Casts; no model was written"
    )


def _hints(model: Path, report: Report) -> Iterator[str]:
    """What to do next, as commands that can be pasted."""
    name = shlex.quote(str(model))
    if report.nodes.full or report.nodes.mixed:
        yield f"amp-rewrite explain {name}   # why nodes stay float32"
