"""The plan and the page of a job, as files."""

from __future__ import annotations

from pathlib import Path

from amp_rewrite.cli.html_and_plots import PageMaker
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.coverage.assumptions import assumptions
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.flops import flop_count
from amp_rewrite.flops.open_dimensions import Dims
from amp_rewrite.reporting.html_report import HtmlReport
from amp_rewrite.rewrite_and_verify import Outcome
from amp_rewrite.rewriting import plan_files


def save_plan(path: Path, analysis: Analysis, dims: Dims) -> None:
    """Writes the plan, with the FLOPs of the nodes, as it may be explained without the model."""
    counted = flop_count.count(analysis.loaded.model, analysis.graph.types, dims)
    text = plan_files.dump(
        analysis.graph,
        analysis.painting,
        analysis.plan,
        analysis.options,
        counted.flops,
        tuple(assumptions(counted)),
    )
    staging.write(text.encode(), path)


def page(job: RewriteJob, done: Analysis | Outcome, pages: PageMaker, *, latency: bool) -> HtmlReport:
    """The page of what was done, or planned."""
    if isinstance(done, Analysis):
        return pages.of_plan(job.model, done)
    evidence = job.evidence(done, timed=latency)
    return pages.page(job.model, done.result.report, evidence, Path(done.result.model))
