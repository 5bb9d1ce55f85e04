"""`amp-rewrite MODEL`: rewrite a model to mixed precision and compare the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.comparison_flags import ComparisonFlags, comparison_flags
from amp_rewrite.cli.decision_flags import DecisionFlags, decision_flags
from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.flag_builders import (
    PATH,
    choice,
    executor_flag,
    grouped,
    json_flag,
    opened,
    output_flag,
    read_path,
    repeatable,
    require_half_flag,
    switch,
    written_file,
)
from amp_rewrite.cli.html_and_plots import ReportFiles, report_flags
from amp_rewrite.cli.input_flags import input_flags, timeout_flag
from amp_rewrite.cli.many_models import ManyModelsCommand, models_argument
from amp_rewrite.cli.progress import counting, shown_progress, tell
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.cli.rewrite_output import JobFiles, carry_out
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.policy.options import Level
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.reporting import summary, terminal
from amp_rewrite.rewriting import result_checks
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.observation import observe
from amp_rewrite.running.sessions import Libraries
from amp_rewrite.tuning.repair import ObservePolicy

_FLAGS = (
    repeatable(
        "--calibrate",
        "PATH",
        "Run the float32 model on these samples first, and keep in float32 what leaves half's "
        "range on them: .npz files, directories of them, or ONNX test_data_set_* directories.",
        type=PATH,
    ),
    written_file(
        "--save-observed",
        "Write the ranges that --calibrate saw, merged with --observed, as JSON for --observed.",
    ),
    executor_flag("What runs the samples of --calibrate"),
)


@dataclass(frozen=True, slots=True)
class CalibrationFlags:
    """The calibration samples, the file to save the observed ranges to, and the executor that runs them."""

    paths: tuple[Path, ...]
    save: Path | None
    executor: str | None

    def seen(
        self,
        model: Path,
        decisions: DecisionFlags,
        limit: TimeLimit,
        progress: Progress | None,
        libraries: Libraries = (),
    ) -> Observed | None:
        """Calibrate and merge with earlier observations; None where neither is requested.

        Raises as `observe`, OptionError where calibration has no effect, and OutputError.
        """
        self._refuse_ineffective(decisions)
        observations = decisions.seen
        if self.paths:
            sample_ranges = self._calibrate(model, limit, progress, libraries)
            observations = sample_ranges if observations is None else observations.merge(sample_ranges)
        if self.save is not None and observations is not None:
            observations.save(self.save)
        return observations

    def _calibrate(
        self, model: Path, limit: TimeLimit, progress: Progress | None, libraries: Libraries
    ) -> Observed:
        data = Data(self.paths)
        source = feeds.input_source(data)
        tell(progress, "calibrate")
        with opened(self.executor) as executor, limit.running():
            samples = feeds.feeds(model, data)
            on_sample = counting(progress, len(source.files))
            return observe(
                model,
                samples,
                inputs=source,
                on_sample=on_sample,
                executor=executor,
                custom_ops=libraries,
            )

    def _refuse_ineffective(self, decisions: DecisionFlags) -> None:
        if self.save is not None and not self.paths and decisions.seen is None:
            raise OptionError(
                "--save-observed has nothing to save: it takes what --calibrate sees, or --observed holds",
                remedy=f"add --calibrate {_samples()}",
            )
        if self.executor is not None and not self.paths:
            raise OptionError("--executor is for --calibrate", remedy="add --calibrate PATH")
        decider = "--plan" if decisions.replay else ""
        if decisions.options.level is Level.UNSAFE_FORCE_ALL:
            decider = f"--level {decisions.options.level.value}"
        if self.paths and decider:
            raise OptionError(f"{decider} decides all, whatever is observed", remedy="leave out --calibrate")


def _samples() -> str:
    """Return the --data inputs, which can serve as samples, or a placeholder without any."""
    context = click.get_current_context(silent=True)
    paths: tuple[Path, ...] = context.params.get("data", ()) if context is not None else ()
    return " --calibrate ".join(map(as_argument, paths)) or "PATH"


def _calibration(flags: Mapping[str, Any]) -> CalibrationFlags:
    return CalibrationFlags(tuple(flags["calibrate"]), flags["save_observed"], flags["executor"])


calibration_flags = grouped(_FLAGS, "calibration", _calibration)
"""A decorator that adds these flags to a command and passes them as `CalibrationFlags` in `calibration`."""


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
@choice(
    "--observe",
    [policy.value for policy in ObservePolicy],
    "When to run the float32 model to observe all values; those near half's limits stay float32. "
    "With never, a failed comparison is not followed by a second attempt.",
    ObservePolicy.ON_FAILURE.value,
)
@switch("--no-verify", "Do not compare the result with the model.")
@switch(
    "--require-verify",
    "Exit with code 1 also if the result could not be compared with the model, or on synthetic inputs alone "
    "and is too far off there.",
)
@require_half_flag
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Print the versions, and how long each stage took.")
@decision_flags("check", "certify", "metadata", "external_data")
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
    observe: str,
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
        job = RewriteJob(
            model=model,
            original=None if no_verify or dry_run else model,
            options=replace(asked.options, dims=sizes),
            replay=asked.replay,
            seen=calibration.seen(model, asked, limit, progress, comparing.libraries),
            output=output,
            policy=asked.policy,
            in_place=in_place,
            is_verbose=verbose,
            data=replace(data, ranges=asked.options.ranges),
            comparing=comparing,
            required=require_verify,
            needs_half=require_half,
            limit=limit,
            progress=progress,
        )
        files = JobFiles(json_, save_plan, report_files, calibration.save)
        show = carry_out(job, policy, files, is_dry=dry_run, latency=latency)
    show(console)


def _policy(decisions: DecisionFlags, observe: str) -> ObservePolicy:
    """Return the observation policy; raise OptionError where observing cannot change the decisions."""
    is_fixed = decisions.replay is not None or decisions.options.level is Level.UNSAFE_FORCE_ALL
    if is_fixed and observe == ObservePolicy.ALWAYS.value:
        flag = "--plan" if decisions.replay else f"--level {decisions.options.level.value}"
        raise OptionError(f"{flag} decides all, whatever is observed", remedy="leave out --observe")
    return ObservePolicy.NEVER if is_fixed else ObservePolicy(observe)


def _refuse_latency(latency: bool, report_files: ReportFiles, *, in_place: bool, dry_run: bool) -> None:
    if not latency:
        return
    if in_place or dry_run:
        raise OptionError(
            "--latency takes two models to time", remedy="write the result to another file with -o"
        )
    if not report_files.asked:
        raise OptionError("--latency is for --html and --plots", remedy="add one, or use amp-rewrite bench")
