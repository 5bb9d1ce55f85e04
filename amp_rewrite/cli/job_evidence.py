"""What runs showed of a job's outcome, for its reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from amp_rewrite.cli import outcome_lines
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.progress import tell
from amp_rewrite.cli.rewrite_job import CANNOT_RUN, RewriteJob
from amp_rewrite.pipeline import Result
from amp_rewrite.repair import Outcome, Verification
from amp_rewrite.reporting.html_report import Evidence
from amp_rewrite.reporting.search_chart import Plan, Search
from amp_rewrite.running import latency, run_arguments
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.latency import Bench, TimedModel
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.tuning.tune import Tuned

NOTHING_CHANGED = "nothing changed"


def of(job: RewriteJob, outcome: Outcome, *, timed: bool) -> Evidence:
    """The verdict with its blame, observed magnitudes, and if `timed` latencies."""
    found = Evidence(
        bench=_latencies(job, outcome.result) if timed else None,
        search=_search(outcome.tuned),
        notes=tuple(outcome_lines.lines(outcome, job.options.io)),
    )
    verdict = job.blame(outcome, per_node=True).verification
    if isinstance(verdict, Verdict):
        return replace(found, verdict=verdict, observed=job.seen or job.observe(verdict))
    reason = not_verified(job, verdict)
    told = reason if reason == NOTHING_CHANGED else f"not compared with the original: {reason}"
    return replace(found, unverified=told)


def _search(tuned: Tuned | None) -> Search:
    """What a search measured, as the page draws it."""
    if tuned is None:
        return Search()
    plans = [Plan(point.seconds, point.error, point.half) for point in tuned.walked]
    return Search(plans, tuned.target, tuned.sensitivity)


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
