"""What runs showed of a job's outcome, for its reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from amp_rewrite.cli import outcome_lines, tuning_step
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.progress import tell
from amp_rewrite.cli.rewrite_job import CANNOT_RUN, RewriteJob
from amp_rewrite.pipeline import Result
from amp_rewrite.reporting.html_report import Evidence
from amp_rewrite.rewrite_and_verify import Outcome, Verification
from amp_rewrite.running import latency, run_arguments
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.latency import Bench
from amp_rewrite.running.prepared_runs import TimedModel
from amp_rewrite.running.verdict import Verdict

NOTHING_CHANGED = "nothing changed"


def of(job: RewriteJob, outcome: Outcome, *, timed: bool) -> Evidence:
    """The verdict with its blame, observed magnitudes, and if `timed` latencies."""
    found = Evidence(
        bench=_latencies(job, outcome.result) if timed else None,
        search=tuning_step.measured(outcome.tuned),
        notes=tuple(outcome_lines.lines(outcome.tuned, outcome.result.report, job.options.io)),
    )
    verdict = job.with_blame(outcome, replace(job.comparing, per_node=True)).verification
    if isinstance(verdict, Verdict):
        return replace(found, verdict=verdict, observed=job.seen or job.observe_if_possible())
    reason = not_verified(job, verdict)
    told = reason if reason == NOTHING_CHANGED else f"not compared with the original: {reason}"
    return replace(found, unverified=told)


def not_verified(job: RewriteJob, verdict: Verification) -> str:
    """Why the result is not known to compute what the model does; empty where it is."""
    if isinstance(verdict, Verdict):
        return "; ".join(verdict.faults)
    if verdict is not None:
        return in_flags(verdict)
    return "--no-verify was given" if job.original is None else NOTHING_CHANGED


def _latencies(job: RewriteJob, result: Result[Any]) -> Bench | None:
    """The latencies of both models as `bench` measures them by default; None where they cannot be run."""
    tell(job.progress, "measure")
    libraries, pair = job.comparing.libraries, (job.model, Path(result.model))
    subjects = [TimedModel(str(path), path, libraries=libraries) for path in pair]
    try:
        with job.limit.running():
            samples = list(feeds.feeds(job.model, job.data))
            return latency.measure(subjects, samples, run_arguments.device(None))
    except CANNOT_RUN:
        return None
