"""`amp-rewrite MODEL`: rewrite a model to mixed precision and compare the two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.flag_builders import (
    PATH,
    choice,
    executor_flag,
    grouped,
    opened,
    read_path,
    repeatable,
    switch,
    written_file,
)
from amp_rewrite.cli.html_and_plots import ReportFiles
from amp_rewrite.cli.many_models import ManyModelsCommand, models_argument
from amp_rewrite.cli.progress import tell
from amp_rewrite.cli.rewrite_job import RewriteJob, job_flags
from amp_rewrite.cli.rewrite_output import carry_out
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.placement import tensorrt
from amp_rewrite.policy.options import Level
from amp_rewrite.reporting import summary, terminal
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs.feeds import Data
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

    def seen(self, job: RewriteJob) -> Observed | None:
        """Calibrate and merge with earlier observations; None where neither is requested.

        Raises as `observe`, OptionError where calibration has no effect, and OutputError.
        """
        self._refuse_ineffective(job)
        observations = job.seen
        if self.paths:
            tell(job.progress, "calibrate")
            with opened(self.executor) as executor, job.limit.running():
                observations = job.observe_on(Data(self.paths, steps=job.data.steps), executor)
        if self.save is not None and observations is not None:
            observations.save(self.save)
        return observations

    def _refuse_ineffective(self, job: RewriteJob) -> None:
        if self.save is not None and not self.paths and job.seen is None:
            raise OptionError(
                "--save-observed has nothing to save: it takes what --calibrate sees, or --observed holds",
                remedy=f"add --calibrate {_samples()}",
            )
        if self.executor is not None and not self.paths:
            raise OptionError("--executor is for --calibrate", remedy="add --calibrate PATH")
        if self.paths and (decider := _decider(job)):
            raise OptionError(f"{decider} decides all, whatever is observed", remedy="leave out --calibrate")


def _decider(job: RewriteJob) -> str:
    """Return the flag beside which no observation changes a decision; empty without one."""
    if job.options.level is Level.UNSAFE_FORCE_ALL:
        return f"--level {job.options.level.value}"
    return "--plan" if job.replay else ""


def _samples() -> str:
    """Return the --data inputs, which can serve as samples, or a placeholder without any."""
    context = click.get_current_context(silent=True)
    paths: tuple[Path, ...] = context.params.get("data", ()) if context is not None else ()
    return " --calibrate ".join(map(as_argument, paths)) or "PATH"


calibration_flags = grouped(
    _FLAGS,
    "calibration",
    lambda flags: CalibrationFlags(tuple(flags["calibrate"]), flags["save_observed"], flags["executor"]),
)
"""A decorator that adds these flags to a command and passes them as `CalibrationFlags` in `calibration`."""


@click.command(cls=ManyModelsCommand)
@models_argument
@read_path(
    "--out-dir",
    "FOLDER",
    "The folder for the results of several models. Each result keeps the name of its model, and its "
    "place in the folder that was given.",
)
@switch("--in-place", "Overwrite the model itself.")
@switch("--dry-run", "Print the plan, and write no model.")
@click.option(
    "--check",
    "compiler",
    type=click.Choice([tensorrt.NAME], case_sensitive=False),
    help="Compile the result with TensorRT, without a GPU; one that it refuses is not written.",
)
@choice(
    "--observe",
    [policy.value for policy in ObservePolicy],
    "When to run the float32 model to observe all values; those near half's limits stay float32. "
    "With never, a failed comparison is not followed by a second attempt.",
    ObservePolicy.ON_FAILURE.value,
)
@switch("--rescale", "Observe all values first, and rescale those that leave float16's range.")
@switch("--no-verify", "Do not compare the result with the model.")
@switch(
    "--require-verify",
    "Exit with code 1 also if the result could not be compared with the model, or on synthetic inputs alone "
    "and is too far off there.",
)
@calibration_flags
@job_flags("Write the plan as JSON, for --plan.", "check", "certify", "metadata", "external_data")
@switch("--latency", "Time both models, as bench does, for --html and --plots.")
def rewrite(
    job: RewriteJob,
    in_place: bool,
    dry_run: bool,
    compiler: str | None,
    observe: str,
    rescale: bool,
    no_verify: bool,
    require_verify: bool,
    calibration: CalibrationFlags,
    latency: bool,
) -> None:
    """Rewrite MODEL to mixed precision, and compare the two.

    A second path is the result: amp-rewrite model.onnx half.onnx. Several models, a folder of them, or a
    pattern need --out-dir: amp-rewrite models/*.onnx --out-dir half. Each is rewritten on its own, and one
    that fails does not stop the others.

    Exit code 1 when the result is not valid, or when the comparison fails or is inconclusive, except for
    errors on synthetic inputs; the result is still written. Exit code 2 for bad input. For several models,
    the exit code is the highest. A model that is half already stays as it is, and is copied only with
    --output.
    """
    if job.is_verbose:
        terminal.print_lines(Console(quiet=job.is_quiet), summary.versions())
    if rescale:
        _refuse_rescale(job, ObservePolicy(observe))
    policy = _policy(job, ObservePolicy.ALWAYS if rescale else ObservePolicy(observe))
    if compiler is not None:
        _refuse_check(dry_run=dry_run)
    if latency:
        _refuse_latency(job.files.page, has_result=not (in_place or dry_run))
    job = replace(
        job,
        is_compared=not (no_verify or dry_run),
        required=require_verify,
        compiles=compiler is not None,
        in_place=in_place,
        files=replace(job.files, observed=calibration.save),
    )
    with job.running(calibration.paths) as running_job:
        observed_job = replace(running_job, seen=calibration.seen(running_job))
        show = carry_out(observed_job, policy, is_dry=dry_run, latency=latency)
    show()


def _policy(job: RewriteJob, observe: ObservePolicy) -> ObservePolicy:
    """Return the observation policy; raise OptionError where observing cannot change the decisions."""
    decider = _decider(job)
    if decider and observe is ObservePolicy.ALWAYS:
        problem = f"{decider} decides all, whatever is observed"
        raise OptionError(problem, remedy="leave out --observe or --rescale")
    return ObservePolicy.NEVER if decider else observe


def _refuse_rescale(job: RewriteJob, observe: ObservePolicy) -> None:
    """Raise OptionError for --rescale where another flag excludes it."""
    if not job.options.rescale or observe is ObservePolicy.NEVER:
        other = "--observe never" if job.options.rescale else "--no-rescale"
        raise OptionError(f"--rescale and {other} contradict each other", remedy="leave out one")
    if not job.options.rescales:
        problem = "--rescale has no effect: it is for float16, where sums are in float32, and not for --level"
        raise OptionError(problem, remedy="leave it out")


def _refuse_check(*, dry_run: bool) -> None:
    """Raise OptionError for a check of a dry run, and MissingPackageError without the packages of a check."""
    tensorrt.version()
    if dry_run:
        problem = "--check compiles the result, which --dry-run does not make"
        raise OptionError(problem, remedy="leave out one")


def _refuse_latency(page: ReportFiles, *, has_result: bool) -> None:
    if not has_result:
        raise OptionError(
            "--latency takes two models to time", remedy="write the result to another file with -o"
        )
    if not page.asked:
        raise OptionError("--latency is for --html and --plots", remedy="add one, or use amp-rewrite bench")
