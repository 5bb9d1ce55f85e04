"""What a job writes besides its model, the plan and the page, and what runs showed for these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from amp_rewrite.bounds import bounding
from amp_rewrite.cli import outcome_lines
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.html_and_plots import PageMaker, ReportFiles
from amp_rewrite.cli.html_placement import Placing
from amp_rewrite.cli.progress import tell
from amp_rewrite.cli.rewrite_job import CANNOT_RUN, RewriteJob
from amp_rewrite.coverage.counts import assumptions
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.flops import flop_count
from amp_rewrite.pipeline import Result
from amp_rewrite.placement.comparison import Comparison
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.repair import Outcome, Verification
from amp_rewrite.reporting.charts import Plan, Search
from amp_rewrite.reporting.html_report import Evidence, HtmlReport
from amp_rewrite.rewriting import plan_files
from amp_rewrite.running import latency, run_arguments
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.latency import Bench, TimedModel
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.tuning.tune import Tuned


class JobReports:
    """The reports of a job on a model whose open dimensions have the sizes `dims`: its plan goes to `plan`,
    its page to `files`, placed by `placing`.
    """

    def __init__(self, dims: Dims, plan: Path | None, files: ReportFiles, placing: Placing | None) -> None:
        self._plan, self._files = plan, files
        self._pages = PageMaker(dims, placing)

    def record(self, analysis: Analysis, *, ranges: bool, quick_ranges: bool) -> None:
        """Takes what the reports show of an analysis, before its model is changed: its bounds with `ranges`,
        and with `quick_ranges` where they cost little.
        """
        if self._plan is not None:
            _save_plan(self._plan, analysis)
        if ranges or (quick_ranges and bounding.is_quick(analysis.facts)):
            analysis.ranges()
        if self._files.asked:
            self._pages.record(analysis)

    def write(self, job: RewriteJob, done: Analysis | Outcome, *, latency: bool) -> Comparison | None:
        """Writes the page of what was done, or planned; what CUDA's provider executes, where it is placed."""
        if not self._files.asked:
            return None
        page = self._page(job, done, latency=latency)
        self._files.write(page)
        return page.placement.compared if page.placement else None

    def _page(self, job: RewriteJob, done: Analysis | Outcome, *, latency: bool) -> HtmlReport:
        if isinstance(done, Analysis):
            return self._pages.of_plan(job.model, done)
        shown = evidence(job, done, timed=latency)
        return self._pages.page(job.model, done.result.report, shown, Path(done.result.model))


def _save_plan(path: Path, analysis: Analysis) -> None:
    """Writes the plan, with the FLOPs of the nodes, as it may be explained without the model."""
    counted = flop_count.count(analysis.loaded.model, analysis.graph.types, analysis.options.dims.dims)
    text = plan_files.dump(
        analysis.graph,
        analysis.painting,
        analysis.plan,
        analysis.options,
        counted.flops,
        tuple(assumptions(counted)),
    )
    staging.write(text.encode(), path)


NOTHING_CHANGED = "nothing changed"


def evidence(job: RewriteJob, outcome: Outcome, *, timed: bool) -> Evidence:
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
