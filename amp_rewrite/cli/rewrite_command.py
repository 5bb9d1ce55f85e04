"""`amp-rewrite MODEL`: rewrite a model to mixed precision and compare the two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from amp_rewrite.cli.decisions import DecisionRequest, RewriteDecisions
from amp_rewrite.cli.flags import command
from amp_rewrite.cli.many_models import ManyModelsCommand, models_argument
from amp_rewrite.cli.output_files import RewriteFiles
from amp_rewrite.cli.records import CalibrationWorkers, ComparisonFlags, Inputs, Limit, Printing
from amp_rewrite.cli.rewrite_job import RewriteJob, job_of
from amp_rewrite.cli.rewrite_output import carry_out
from amp_rewrite.placement import tensorrt
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import tell
from amp_rewrite.reporting import summary, terminal
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.tuning.comparing import Judging


@command(
    *(RewriteFiles, RewriteDecisions, Inputs, ComparisonFlags, Limit, CalibrationWorkers, Printing),
    kind=ManyModelsCommand,
)
@models_argument
def rewrite(
    model: Path,
    files: RewriteFiles,
    asked: DecisionRequest,
    data: Data,
    judging: Judging,
    limit: TimeLimit,
    workers: CalibrationWorkers,
    printing: Printing,
) -> None:
    """Rewrite MODEL to mixed precision, and compare the two.

    A second path is the result: amp-rewrite model.onnx half.onnx. Several models, a folder of them, or a
    pattern need a folder: amp-rewrite models/*.onnx -o half.

    Exit code 1 when the result is not valid, or the verdict is FAIL or inconclusive, but for "inconclusive
    on synthetic inputs"; the result is still written. Exit code 2 for bad input.
    """
    if printing.verbose:
        terminal.print_lines(printing.console, summary.versions())
    job = job_of(model, files, asked, data, judging, limit, printing, in_place=files.in_place)
    if job.compiles:
        tensorrt.version()  # before any work
    with job.running(asked.samples) as running_job:
        observed_job = replace(running_job, seen=_observed(running_job, workers))
        show = carry_out(observed_job, is_dry=files.dry_run)
    show()


def _observed(job: RewriteJob, workers: CalibrationWorkers) -> Observed | None:
    """Calibrate and merge with earlier observations; None where neither is requested.

    Raises as `observe`, and OutputError.
    """
    observations = job.seen
    if job.asked.samples:
        tell(job.progress, "calibrate")
        with workers.opened() as executor, job.limit.running():
            observations = job.observe_on(Data(job.asked.samples, steps=job.data.steps), executor)
    if (place := job.files.saved("observed")) is not None and observations is not None:
        observations.save(place, force=True)  # refused before
    return observations
