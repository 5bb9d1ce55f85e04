"""The flags `--html` and `--plots`, and the page that both show."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import onnx_ir as ir

from amp_rewrite import explanation_sources, pipeline
from amp_rewrite.cli.flag_builders import PATH, WRITTEN, grouped
from amp_rewrite.coverage import measuring
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.explanation_sources import Explanation
from amp_rewrite.files import destination, staging
from amp_rewrite.flops.flop_count import FlopCount
from amp_rewrite.flops.open_dimensions import Dims
from amp_rewrite.model import constants
from amp_rewrite.numerics import half
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.options import Options
from amp_rewrite.reporting import graph_drawing, html_file, html_report, picture_files, plots
from amp_rewrite.reporting.graph_drawing import PlannedChanges
from amp_rewrite.reporting.html_report import DecisionView, Evidence, HtmlReport
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.report import Report

_FLAGS = (
    click.option(
        "--html",
        type=WRITTEN,
        metavar="FILE",
        help="Write an HTML report: the graph, why each node has its precision, coverage, errors.",
    ),
    click.option(
        "--plots",
        type=PATH,
        metavar="FOLDER",
        help="Write the report's plots as SVG, and as PNG where matplotlib is installed.",
    ),
)


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where the report and the plots go; None where they were not asked for."""

    html: Path | None
    plots: Path | None

    @property
    def asked(self) -> bool:
        """Whether any of them was asked for."""
        return self.html is not None or self.plots is not None

    def write(self, shown: HtmlReport) -> None:
        """Writes what was asked for; raises OutputError."""
        if self.html is not None:
            staging.write(html_file.render(shown), self.html)
        if self.plots is not None:
            destination.make_folder(self.plots)
            for name, picture in shown.pictures.items():
                for kind in (".svg", ".png") if picture_files.has_png() else (".svg",):
                    picture_files.write(picture, self.plots / f"{name}{kind}")


def _read(flags: Mapping[str, Any]) -> ReportFiles:
    folder = flags["plots"]
    if folder is not None and folder.exists() and not folder.is_dir():
        raise OptionError(f"--plots {folder} is a file", remedy="name a folder")
    return ReportFiles(flags["html"], folder)


report_flags = grouped(_FLAGS, "report_files", _read)
"""Adds these flags to a command, which gets them as `ReportFiles` in `report_files`."""


class PageMaker:
    """Records the last analysis, as a rewrite may decide twice, and makes the page of it."""

    def __init__(self, dims: Dims) -> None:
        self.dims = dims
        self._decided: DecisionView | None = None

    def record(self, analysis: Analysis) -> None:
        """Records what the page shows of an analysis, before its model is changed."""
        found = explanation_sources.of_analysis(analysis, self.dims)
        planned = graph_drawing.changes(analysis.graph, found.decisions, analysis.plan)
        self._decided = _decided(found, analysis.loaded.model, planned, analysis.plan.half)

    def page(self, model: Path, report: Report, evidence: Evidence, coverage: Coverage) -> HtmlReport:
        """The page of the last analysis."""
        assert self._decided is not None, "an analysis is recorded before its page is made"
        return HtmlReport(str(model), report, self._decided, evidence, coverage)


def of_plan(model: Path, analysis: Analysis, dims: Dims) -> HtmlReport:
    """The page of an analysis that is not carried out; its coverage is that of a temporary result."""
    pages = PageMaker(dims)
    pages.record(analysis)
    return pages.page(model, analysis.report(), Evidence(), _coverage(model, analysis, dims))


def _coverage(model: Path, analysis: Analysis, dims: Dims) -> Coverage:
    """How much is half once the decisions of an analysis are carried out."""
    plan = plan_files.dump(analysis.graph, analysis.painting, analysis.plan, analysis.options)
    options = Options(check=False, metadata=False)
    with tempfile.TemporaryDirectory() as scratch:
        saved, result = (Path(scratch) / name for name in ("plan.json", "result.onnx"))
        staging.write(plan.encode(), saved)
        pipeline.rewrite(model, options, output=result, replay=plan_files.load(str(saved)))
        return measuring.measure(result, dims)


def of_rewritten(model: Path, found: Explanation, dims: Dims) -> HtmlReport:
    """The page of a model that was rewritten before, from the decisions that it carries."""
    decided = _decided(found, _measured(found).model, PlannedChanges(), half.named(found.half))
    return HtmlReport(str(model), None, decided, Evidence(), measuring.measure(model, dims))


def _decided(found: Explanation, model: ir.Model, planned: PlannedChanges, to: Half) -> DecisionView:
    counted = _measured(found)
    drawn = graph_drawing.build(model.graph, counted.types, found.decisions, planned, counted.flops)
    binades = plots.binades_of_stored(constants.find(model).values())
    return html_report.decision_view(drawn, found.decisions, found.causes, binades, to)


def _measured(found: Explanation) -> FlopCount:
    assert found.counted is not None, "only a saved plan has no model"
    return found.counted
