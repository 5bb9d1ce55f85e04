"""What a job writes besides its model: the plan, and the page."""

from __future__ import annotations

from pathlib import Path

from amp_rewrite.bounds import bounding
from amp_rewrite.cli import job_evidence
from amp_rewrite.cli.html_and_plots import PageMaker, ReportFiles
from amp_rewrite.cli.html_placement import Placing
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.coverage.measuring import assumptions
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.flops import shapes
from amp_rewrite.placement.comparison import Comparison
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.reporting.html_report import HtmlReport
from amp_rewrite.rewrite_and_verify import Outcome
from amp_rewrite.rewriting import plan_files


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
        evidence = job_evidence.of(job, done, timed=latency)
        return self._pages.page(job.model, done.result.report, evidence, Path(done.result.model))


def _save_plan(path: Path, analysis: Analysis) -> None:
    """Writes the plan, with the FLOPs of the nodes, as it may be explained without the model."""
    counted = shapes.count(analysis.loaded.model, analysis.graph.types, analysis.options.dims.dims)
    text = plan_files.dump(
        analysis.graph,
        analysis.painting,
        analysis.plan,
        analysis.options,
        counted.flops,
        tuple(assumptions(counted)),
    )
    staging.write(text.encode(), path)
