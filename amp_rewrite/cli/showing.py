"""What a person looks at, the HTML report and the plots: flags, and how the page comes together."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import onnx_ir as ir

from amp_rewrite import explanation, pipeline
from amp_rewrite.cli.grouping import grouped
from amp_rewrite.cli.touched_files import WRITTEN
from amp_rewrite.coverage import measuring
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.analysis import Analysis
from amp_rewrite.explanation import Explanation
from amp_rewrite.files import destination, staging
from amp_rewrite.flops.flop_count import FlopCount
from amp_rewrite.flops.open_dimensions import Dims
from amp_rewrite.model import constants
from amp_rewrite.numerics import half
from amp_rewrite.numerics.half import Half
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
        help="Write a report to look at: the graph, why each node is what it is, coverage, errors.",
    ),
    click.option(
        "--plots",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Write the report's plots as SVG, and as PNG where matplotlib is installed.",
    ),
)


@dataclass(frozen=True, slots=True)
class Showing:
    """Where the report and the plots go; None where they were not asked for."""

    html: Path | None
    plots: Path | None

    @property
    def asked(self) -> bool:
        """Whether there is anything to show."""
        return self.html is not None or self.plots is not None

    def write(self, shown: HtmlReport) -> None:
        """Writes what was asked for; raises OutputError."""
        if self.html is not None:
            staging.write(html_file.render(shown), self.html)
        if self.plots is not None:
            _write_plots(shown, self.plots)


def _write_plots(shown: HtmlReport, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise destination.unwritable(folder, error) from error
    kinds = (".svg", ".png") if picture_files.has_png() else (".svg",)
    for name, picture in shown.pictures.items():
        for kind in kinds:
            picture_files.write(picture, folder / f"{name}{kind}")


def _showing(flags: Mapping[str, Any]) -> Showing:
    html, folder = flags["html"], flags["plots"]
    if folder is not None and folder.exists() and not folder.is_dir():
        raise OptionError(f"--plots {folder} is a file", remedy="name a folder")
    return Showing(html, folder)


showing_flags = grouped(_FLAGS, ("html", "plots"), "showing", _showing)
"""Adds the flags of this module to a command; it gets them as `Showing` in `showing`."""


class Sketch:
    """Keeps what was decided last: a rewrite that looks at its values may decide twice."""

    def __init__(self, dims: Dims) -> None:
        self.dims = dims
        self.decided: DecisionView | None = None

    def draw(self, made: Analysis) -> None:
        """Notes what the page shows of an analysis, before its model is changed."""
        found = explanation.of_analysis(made, self.dims)
        planned = graph_drawing.changes(made.graph, found.decisions, made.plan)
        self.decided = _decided(found, made.loaded.model, planned, made.plan.half)

    def page(self, model: Path, report: Report, evidence: Evidence, coverage: Coverage) -> HtmlReport:
        """The page of what was decided last."""
        assert self.decided is not None, "a page is made after the decisions"
        return HtmlReport(str(model), report, self.decided, evidence, coverage)


def of_plan(model: Path, made: Analysis, dims: Dims) -> HtmlReport:
    """The page of what is decided and not written; its coverage is that of a result that is thrown away."""
    sketch = Sketch(dims)
    sketch.draw(made)
    return sketch.page(model, made.report(), Evidence(), _coverage(model, made, dims))


def _coverage(model: Path, made: Analysis, dims: Dims) -> Coverage:
    """How much is half once the decisions of an analysis are carried out."""
    plan = plan_files.dump(made.graph, made.painting, made.plan, made.options)
    options = replace(made.options, check=False, metadata=False)
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
    assert found.counted is not None, "only a plan has no model"
    return found.counted
