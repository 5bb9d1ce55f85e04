"""`amp-rewrite MODEL`: the main job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from amp_rewrite import explanation
from amp_rewrite.advice.advice import Advice
from amp_rewrite.cli.feed_flags import feed_flags, timeout_flag
from amp_rewrite.cli.flag_words import as_argument, in_flags
from amp_rewrite.cli.flags import Asked, decision_flags
from amp_rewrite.cli.job import NOTHING_CHANGED, Job, original
from amp_rewrite.cli.judging import Judging, judging_flags
from amp_rewrite.cli.output_flags import external_data_flag, json_flag
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.showing import Showing, Sketch, of_plan, showing_flags
from amp_rewrite.cli.touched_files import WRITTEN
from amp_rewrite.cli.written_files import WritingCommand
from amp_rewrite.console import Console
from amp_rewrite.coverage import measuring
from amp_rewrite.coverage.assumptions import assumptions
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.explaining.analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.flops import flop_count
from amp_rewrite.flops.opened import Dims
from amp_rewrite.model import writing
from amp_rewrite.pipeline import Result
from amp_rewrite.policy.options import ExternalData, Level
from amp_rewrite.process.stoppable import Limit
from amp_rewrite.reporting import summary, terminal
from amp_rewrite.rewrite_and_verify import ObservePolicy, Outcome, Verification
from amp_rewrite.rewriting import checking, plan_files
from amp_rewrite.rewriting.report import Report
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.verification import Verdict


@click.command(cls=WritingCommand)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=WRITTEN,
    metavar="FILE",
    help="Where to write; MODEL_fp16.onnx (or _bf16) beside the model if not given.",
)
@click.option("--in-place", is_flag=True, help="Write over the model itself.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and write no model.")
@click.option(
    "--save-plan",
    type=WRITTEN,
    metavar="FILE",
    help="Write the plan as JSON; --plan carries it out again.",
)
@json_flag("report")
@external_data_flag
@click.option("--no-check", is_flag=True, help="Do not run onnx's checker on the result.")
@click.option(
    "--observe",
    type=click.Choice([looking.value for looking in ObservePolicy]),
    default=ObservePolicy.ON_FAILURE.value,
    show_default=True,
    help="When to look at all values of a float32 run, and keep in float32 what comes near half's limits.",
)
@click.option("--no-metadata", is_flag=True, help="Do not leave the decisions in the metadata of the result.")
@click.option("--no-verify", is_flag=True, help="Do not compare the result with the model.")
@click.option(
    "--require-verify",
    is_flag=True,
    help="Exit code 1 also where the result could not be compared with the model.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@decision_flags
@feed_flags
@judging_flags
@timeout_flag
@showing_flags
@click.option("--latency", is_flag=True, help="Time both models, as bench does, for --html and --plots.")
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
    no_metadata: bool,
    no_verify: bool,
    require_verify: bool,
    quiet: bool,
    asked: Asked,
    data: Data,
    judging: Judging,
    limit: Limit,
    showing: Showing,
    latency: bool,
) -> None:
    """Rewrite MODEL to mixed precision, and compare the result with it.

    Exit code 1 when the result is not valid, the verdict is FAIL, or the comparison proves nothing; it is
    written all the same.
    """
    console = Console(quiet=quiet)
    looking = _looking(asked, observe)
    _refuse_latency(latency, showing, in_place=in_place, dry_run=dry_run)
    with checking.blaming(lambda: str(model)), shown_progress(quiet=quiet) as progress:
        counts = showing.asked or save_plan is not None
        dims = feeds.known_sizes(model, data) if counts else {}
        sketch = Sketch(dims)
        job = Job(
            model=model,
            original=None if no_verify or dry_run else original(model, in_place=in_place),
            options=replace(
                asked.options, check=not no_check, metadata=not no_metadata, external_data=external_data
            ),
            replay=asked.replay,
            output=output,
            in_place=in_place,
            data=data,
            judging=replace(judging, per_node=judging.per_node or showing.asked),
            required=require_verify,
            limit=limit,
            on_plan=partial(_on_plan, save_plan, dims, sketch if showing.asked else None),
            progress=progress,
        )
        done = job.plan(looking) if dry_run else job.run(looking)
        if showing.asked:
            _show(showing, job, done, sketch, latency=latency)
    if isinstance(done, Analysis):
        _tell_plan(console, done, json_)
    else:
        _tell(console, job, judging.without_unasked_blame(done), json_, judging)


def _looking(asked: Asked, observe: str) -> ObservePolicy:
    """When to look at values; OptionError where they have no say."""
    settled = asked.replay is not None or asked.options.level is Level.UNSAFE_FORCE_ALL
    if settled and observe == ObservePolicy.ALWAYS.value:
        flag = "--plan" if asked.replay else f"--level {asked.options.level.value}"
        raise OptionError(f"{flag} decides all, whatever is observed", remedy="leave out --observe")
    return ObservePolicy.NEVER if settled else ObservePolicy(observe)


def _refuse_latency(latency: bool, showing: Showing, *, in_place: bool, dry_run: bool) -> None:
    if not latency:
        return
    if in_place or dry_run:
        raise OptionError("--latency takes two models to time", remedy="write the result beside the model")
    if not showing.asked:
        raise OptionError("--latency is for --html and --plots", remedy="add one, or use amp-rewrite bench")


def _on_plan(save_plan: Path | None, dims: Dims, sketch: Sketch | None, made: Analysis) -> None:
    """What is done when all is decided, and before anything changes."""
    if save_plan is not None:
        _save(save_plan, made, dims)
    if sketch is not None:
        sketch.draw(made)


def _show(showing: Showing, job: Job, done: Analysis | Outcome, sketch: Sketch, *, latency: bool) -> None:
    """Writes the report and the plots of what was done, or is to be done."""
    if isinstance(done, Analysis):
        showing.write(of_plan(job.model, done, sketch.dims))
        return
    evidence = job.evidence(done, timed=latency)
    coverage = measuring.measure(done.result.model, sketch.dims)
    showing.write(sketch.page(job.model, done.result.report, evidence, coverage))


def _save(path: Path, made: Analysis, dims: Dims) -> None:
    """Writes the plan, with the FLOPs of the nodes for who reads it without the model."""
    counted = flop_count.count(made.loaded.model, made.graph.types, dims)
    text = plan_files.dump(
        made.graph,
        made.painting,
        made.plan,
        made.options,
        counted.flops,
        tuple(assumptions(counted)),
    )
    staging.write(text.encode(), path)


def _tell(console: Console, job: Job, proof: Outcome, json_: Path | None, judging: Judging) -> None:
    """Reports on a result; exit code 1 if it is invalid, fails, or was not compared as required."""
    report, judged = proof.result.report, proof.verification
    reason = job.not_verified(judged)
    if json_ is not None:
        _write_json(json_, report, judged, reason, explanation.advise(proof.result.model, report.half))
    terminal.print_summary(console, report, str(proof.result.model))
    if judged is None and reason == NOTHING_CHANGED:
        console.print(f"nothing changed: no node became {report.half}, and the result computes what it did")
    _print_verdict(console, judged, judging)
    if reason == NOTHING_CHANGED:
        console.print(f"not compared with the original: {reason}")
    if not (isinstance(judged, Verdict) and reason):  # else the verdict has said what to do next
        terminal.print_next(console, _hints(job.model, proof.result))
    if not report.ok or (reason and (job.required or isinstance(judged, Verdict))):
        raise click.exceptions.Exit(1)


def _write_json(path: Path, report: Report, judged: Verification, reason: str, advice: Advice) -> None:
    verdict = judged.to_json() if isinstance(judged, Verdict) else None
    if isinstance(judged, AmpRewriteError):
        verdict = {"not_compared": in_flags(judged)}
    verified = {"verified": not reason, "not_verified": reason or None}
    told = {"verification": verdict, "advice": advice.to_json()}
    writing.write_json({**report.to_json(), **verified, **told}, path)


def _print_verdict(console: Console, verdict: Verification, judging: Judging) -> None:
    """A verdict is printed; one that is bad, and why there is none, also when all else is quiet."""
    loud = Console(stderr=console.quiet)
    if isinstance(verdict, AmpRewriteError):
        loud.print(f"not compared with the original: {in_flags(verdict)}")
    elif verdict is not None:
        terminal.print_verdict(console if verdict.ok else loud, verdict, per_node=judging.per_node)


def _tell_plan(console: Console, made: Analysis, json_: Path | None) -> None:
    """Reports on a plan that is not carried out."""
    if json_ is not None:
        _write_json(json_, made.report(), None, "--dry-run was given", explanation.advise_planned(made))
    terminal.print_plan(console, made.plan)
    terminal.print_lines(console, summary.matches(made.matched))
    halves = sum(map(made.painting.is_half, range(len(made.graph.units))))
    console.print(
        f"{halves:,} of {len(made.graph.units):,} units in {made.plan.half.name}, "
        f"{len(made.plan.casts):,} Casts; no model was written"
    )


def _hints(model: Path, result: Result[Any]) -> Iterator[str]:
    """What to do next, as commands that can be pasted; what was observed, only the result knows."""
    report = result.report
    name = as_argument(Path(result.model) if report.observed else model)
    if report.nodes.full or report.nodes.mixed:
        yield f"amp-rewrite explain {name}   # why nodes stay float32"
