"""`amp-rewrite MODEL`: the main job."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from amp_rewrite import model_io, pipeline, plan_files
from amp_rewrite.cli.flags import Asked, decision_flags
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.reporting import terminal
from amp_rewrite.reporting.report import Report


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
@click.option(
    "--json",
    "json_",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report as JSON.",
)
@click.option("--no-check", is_flag=True, help="Do not run onnx's checker on the result.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@decision_flags
def rewrite(
    model: Path,
    output: Path | None,
    in_place: bool,
    dry_run: bool,
    save_plan: Path | None,
    json_: Path | None,
    no_check: bool,
    quiet: bool,
    asked: Asked,
) -> None:
    """Rewrite MODEL to mixed precision."""
    console = Console(quiet=quiet, highlight=False, soft_wrap=True)
    if dry_run or save_plan is not None:
        _plan(console, model, asked, save_plan, show=dry_run)
    if dry_run:
        return
    options = replace(asked.options, check=not no_check)
    with shown_progress(quiet=quiet) as progress:
        result = pipeline.rewrite(
            model, options, output=output, in_place=in_place, replay=asked.replay, progress=progress
        )
    if json_ is not None:
        text = json.dumps(result.report.to_json(), indent=1) + "\n"
        model_io.write(text.encode(), json_)
    terminal.print_summary(console, result.report, str(result.model), _hints(model, result.report))
    if not result.report.ok:
        raise click.exceptions.Exit(1)


def _plan(console: Console, model: Path, asked: Asked, save_plan: Path | None, *, show: bool) -> None:
    """Makes the plan alone, to print it or to save it."""
    with shown_progress(quiet=console.quiet) as progress:
        made = asked.analyze(model, progress)
    if save_plan is not None:
        text = plan_files.dump(made.graph, made.painting, made.plan, made.loaded.model)
        model_io.write(text.encode(), save_plan)
    if show:
        terminal.print_plan(console, made.plan)
        halves = sum(map(made.painting.is_half, range(len(made.graph.units))))
        console.print(
            f"{halves:,} of {len(made.graph.units):,} units in {made.plan.half.name}, "
            f"{len(made.plan.casts):,} Casts; nothing was written"
        )


def _hints(model: Path, report: Report) -> Iterator[str]:
    """What to do next, as commands that can be pasted."""
    name = shlex.quote(str(model))
    if report.nodes.full or report.nodes.mixed:
        yield f"amp-rewrite explain {name}   # why nodes stay float32"
