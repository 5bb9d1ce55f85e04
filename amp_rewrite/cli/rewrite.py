"""`amp-rewrite MODEL`: the main job."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from amp_rewrite import explanation_sources
from amp_rewrite.cli import rewrite_output
from amp_rewrite.cli.calibration_flags import CalibrationFlags, calibration_flags
from amp_rewrite.cli.comparison_flags import ComparisonFlags, comparison_flags
from amp_rewrite.cli.decision_flags import DecisionFlags, decision_flags
from amp_rewrite.cli.flag_builders import choice, read_path, switch, written_file
from amp_rewrite.cli.html_and_plots import ReportFiles, report_flags
from amp_rewrite.cli.html_placement import Placing
from amp_rewrite.cli.input_flags import input_flags, timeout_flag
from amp_rewrite.cli.job_reports import JobReports
from amp_rewrite.cli.many_models import ManyModelsCommand, models_argument
from amp_rewrite.cli.output_flags import external_data_flag, json_flag, output_flag, require_half_flag
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.rewrite_job import RewriteJob, Tuning, watching
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.policy.options import ExternalData, Level
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.repair import ObservePolicy
from amp_rewrite.reporting import summary, terminal
from amp_rewrite.rewriting import result_checks
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data


@click.command(cls=ManyModelsCommand)
@models_argument
@output_flag("MODEL_fp16.onnx (or _bf16)")
@read_path(
    "--out-dir",
    "FOLDER",
    "The folder for the results of several models. Each result keeps the name of its model, and its "
    "place in the folder that was given.",
)
@switch("--in-place", "Overwrite the model itself.")
@switch("--dry-run", "Print the plan, and write no model.")
@written_file("--save-plan", "Write the plan as JSON, for --plan.")
@json_flag("report")
@external_data_flag
@switch("--no-check", "Do not run onnx's checker on the result.")
@switch(
    "--no-certify",
    "Write the result even without the proof that it differs from the model only in precision.",
)
@choice(
    "--observe",
    [policy.value for policy in ObservePolicy],
    "When to run the float32 model to observe all values; those near half's limits stay float32. "
    "With never, a failed comparison is not followed by a second attempt.",
    ObservePolicy.ON_FAILURE.value,
)
@switch("--no-metadata", "Do not store the decisions in the metadata of the result.")
@switch("--no-verify", "Do not compare the result with the model.")
@switch(
    "--require-verify",
    "Exit with code 1 also if the result could not be compared with the model, or on synthetic inputs alone "
    "and is too far off there.",
)
@require_half_flag
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Print the versions, and how long each stage took.")
@decision_flags
@calibration_flags
@input_flags
@comparison_flags
@timeout_flag
@report_flags
@switch("--latency", "Time both models, as bench does, for --html and --plots.")
def rewrite(
    model: Path,
    output: Path | None,
    in_place: bool,
    dry_run: bool,
    save_plan: Path | None,
    json_: Path | None,
    external_data: ExternalData,
    no_check: bool,
    no_certify: bool,
    observe: str,
    no_metadata: bool,
    no_verify: bool,
    require_verify: bool,
    require_half: bool,
    quiet: bool,
    verbose: bool,
    asked: DecisionFlags,
    calibration: CalibrationFlags,
    data: Data,
    comparing: ComparisonFlags,
    limit: TimeLimit,
    report_files: ReportFiles,
    latency: bool,
) -> None:
    """Rewrite MODEL to mixed precision, and compare the two.

    Several models, a folder of them, or a pattern need --out-dir: amp-rewrite models/*.onnx --out-dir half.
    Each is rewritten on its own, and one that fails does not stop the others.

    Exit code 1 when the result is not valid, or when the comparison fails or is inconclusive, except for
    errors on synthetic inputs; the result is still written. Exit code 2 for bad input. For several models,
    the exit code is the highest. A model that is half already stays as it is, and is copied only with
    --output.
    """
    console = Console(quiet=quiet)
    if verbose:
        terminal.print_lines(console, summary.versions())
    policy = _policy(asked, observe)
    comparing.refuse_missing()
    _refuse_latency(latency, report_files, in_place=in_place, dry_run=dry_run)
    with result_checks.blaming(lambda: str(model)), shown_progress(quiet=quiet) as progress:
        sizes = feeds.given_sizes(model, data, calibration.paths)
        seen = calibration.seen(model, asked, limit, progress, comparing.libraries)
        placing = Placing(model, limit, comparing.libraries) if report_files.placement else None
        reports = JobReports(sizes.dims, save_plan, report_files, placing)
        job = RewriteJob(
            model=model,
            original=None if no_verify or dry_run else model,
            options=replace(
                asked.options,
                check=not no_check,
                certify=not no_certify,
                metadata=not no_metadata,
                external_data=external_data,
                dims=sizes,
            ),
            replay=asked.replay,
            seen=seen,
            output=output,
            in_place=in_place,
            data=replace(data, ranges=asked.options.ranges),
            comparing=comparing,
            required=require_verify,
            needs_half=require_half,
            limit=limit,
            on_plan=partial(reports.record, ranges=json_ is not None, quick_ranges=not dry_run),
            progress=progress,
            tuning=Tuning(watch=watching(progress)),
        )
        done = job.plan(policy) if dry_run else job.run(policy)
        placed = reports.write(job, done, latency=latency)
        if not isinstance(done, Analysis):
            done = rewrite_output.settle(job, done, json_, placed)
    beside = (save_plan, report_files.html, report_files.plots, calibration.save)
    if isinstance(done, Analysis):
        terminal.print_device_check(console, asked.policy, lambda: explanation_sources.advise_planned(done))
        rewrite_output.print_plan(console, done, json_, placed, seen, beside)
    else:
        result = done.result
        advise = partial(explanation_sources.advise_model, result.model, result.report.half, sizes.dims)
        terminal.print_device_check(console, asked.policy, advise)
        if verbose:
            terminal.print_lines(console, summary.seconds(result.report))
        rewrite_output.print_result(console, job, done, (json_, *beside))


def _policy(asked: DecisionFlags, observe: str) -> ObservePolicy:
    """When to observe values; OptionError where that cannot change the decisions."""
    settled = asked.replay is not None or asked.options.level is Level.UNSAFE_FORCE_ALL
    if settled and observe == ObservePolicy.ALWAYS.value:
        flag = "--plan" if asked.replay else f"--level {asked.options.level.value}"
        raise OptionError(f"{flag} decides all, whatever is observed", remedy="leave out --observe")
    return ObservePolicy.NEVER if settled else ObservePolicy(observe)


def _refuse_latency(latency: bool, report_files: ReportFiles, *, in_place: bool, dry_run: bool) -> None:
    if not latency:
        return
    if in_place or dry_run:
        raise OptionError(
            "--latency takes two models to time", remedy="write the result to another file with -o"
        )
    if not report_files.asked:
        raise OptionError("--latency is for --html and --plots", remedy="add one, or use amp-rewrite bench")
