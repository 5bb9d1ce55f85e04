"""`amp-rewrite MODEL`: rewrite a model to mixed precision and compare the two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from amp_rewrite.cli.flag_builders import executor_flag, grouped, opened, switch, written_file
from amp_rewrite.cli.many_models import ManyModelsCommand, models_argument
from amp_rewrite.cli.progress import tell
from amp_rewrite.cli.rewrite_job import REPAIR, VERIFY, RewriteJob, job_flags
from amp_rewrite.cli.rewrite_output import carry_out
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.placement import tensorrt
from amp_rewrite.policy.options import Level
from amp_rewrite.reporting import summary, terminal
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs.feeds import Data

_FLAGS = (
    written_file("--save-observed", "Write the ranges that --calibrate saw, as JSON for --calibrate."),
    executor_flag("What runs several models, or the samples of --calibrate"),
)


@dataclass(frozen=True, slots=True)
class CalibrationFlags:
    """The file to save the observed ranges to, and the executor that runs the samples of a calibration."""

    save: Path | None
    executor: str | None

    def seen(self, job: RewriteJob) -> Observed | None:
        """Calibrate and merge with earlier observations; None where neither is requested.

        Raises as `observe`, OptionError where calibration has no effect, and OutputError.
        """
        if job.samples and (decider := _decider(job)):
            raise OptionError(f"{decider} decides all, whatever is observed", remedy="leave out --calibrate")
        observations = job.seen
        if job.samples:
            tell(job.progress, "calibrate")
            with opened(self.executor) as executor, job.limit.running():
                observations = job.observe_on(Data(job.samples, steps=job.data.steps), executor)
        if self.save is not None and observations is not None:
            observations.save(self.save, force=True)  # refused before
        return observations


def _decider(job: RewriteJob) -> str:
    """Return the flag beside which no observation changes a decision; empty without one."""
    if job.options.level is Level.UNSAFE_FORCE_ALL:
        return f"--level {job.options.level.value}"
    return "--plan" if job.replay else ""


calibration_flags = grouped(
    _FLAGS,
    "calibration",
    lambda flags: CalibrationFlags(flags["save_observed"], flags["executor"]),
)
"""A decorator that adds these flags to a command and passes them as `CalibrationFlags` in `calibration`."""


@click.command(cls=ManyModelsCommand)
@models_argument
@switch("--in-place", "Overwrite the model itself.")
@switch("--dry-run", "Print the plan, and write no model.")
@calibration_flags
@job_flags(
    "Write the plan as JSON, for --plan.",
    *("check", "certify", "metadata", "external_data"),
    steps={
        VERIFY: "the result is not compared with the model",
        REPAIR: "a failed comparison is not followed by a second attempt",
    },
    takes_samples=True,
)
def rewrite(
    job: RewriteJob,
    in_place: bool,
    dry_run: bool,
    calibration: CalibrationFlags,
) -> None:
    """Rewrite MODEL to mixed precision, and compare the two.

    A second path is the result: amp-rewrite model.onnx half.onnx. Several models, a folder of them, or a
    pattern need a folder: amp-rewrite models/*.onnx -o half. Each is rewritten on its own, and one that fails
    does not stop the others.

    Exit code 1 when the result is not valid, or the verdict is FAIL or inconclusive, but for "inconclusive
    on made-up inputs"; the result is still written. Exit code 2 for bad input. For several models, the exit
    code is the highest. A model that is half already stays as it is, and is copied only with
    --output.
    """
    if job.is_verbose:
        terminal.print_lines(Console(quiet=job.is_quiet), summary.versions())
    if job.compiles:
        tensorrt.version()  # before any work
    job = replace(
        job,
        is_compared=job.is_compared and not dry_run,
        in_place=in_place,
        files=replace(job.files, observed=calibration.save),
    )
    with job.running(job.samples) as running_job:
        observed_job = replace(running_job, seen=calibration.seen(running_job))
        show = carry_out(observed_job, is_dry=dry_run)
    show()
