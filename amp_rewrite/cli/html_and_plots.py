"""The flags `--html`, `--plots` and `--show`, and the page behind all three."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from amp_rewrite import pipeline
from amp_rewrite.cli import explanation_sources
from amp_rewrite.cli.explanation_sources import Explanation
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flag_builders import Flag, given_flags, grouped, read_path, words, written_file
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.coverage import counts
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.model import constants
from amp_rewrite.numerics import half
from amp_rewrite.numerics.half import Half
from amp_rewrite.placement import differences, opening, placing, saved_graph, stub_libraries
from amp_rewrite.placement.differences import Comparison
from amp_rewrite.placement.placement import Placement
from amp_rewrite.placement.placing import Execution, Open
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.policy.options import Options
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.reporting import charts, drawn_graph, executed_graph, html_file, html_report, pictures
from amp_rewrite.reporting.drawn_graph import Box, PlannedChanges
from amp_rewrite.reporting.executed_graph import PlacementView
from amp_rewrite.reporting.html_report import DecisionView, Evidence, HtmlReport
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.report import Report
from amp_rewrite.running.sessions import Device, Libraries
from amp_rewrite.training import scaled_step
from amp_rewrite.training.scaled_step import ScaledStep

_DEVICE = Device.CUDA


def refuse_without_runtime() -> None:
    """Raise, before any work, an error that keeps models from being opened, as `stub_libraries.folder`."""
    if opening.needs_stubs(_DEVICE):
        stub_libraries.folder()


@dataclass(frozen=True, slots=True)
class Placing:
    """The placement of results within a time limit, beside that of the original if it is known.

    `libraries` implement the custom operators.
    """

    original: Path | None = None
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(None))
    libraries: Libraries = ()

    def view(self, result: Path, plan_boxes: Sequence[Box]) -> PlacementView:
        """Return the view of a result on the CUDA provider, beside the boxes of its plan."""
        with placing.opener(_DEVICE, self.libraries) as open_model:
            before = self._opened(open_model, self.original).placement if self.original else None
            execution = self._opened(open_model, result)
        graph = executed_graph.build(execution, saved_graph.load(result), plan_boxes)
        return PlacementView(Comparison(differences.runtime(_DEVICE), execution.placement, before), graph)

    def _opened(self, open_model: Open, model: Path) -> Execution:
        """Open a model; one that cannot be opened here has a placement with the reason."""
        try:
            with self.limit.running():
                return open_model(model, None)
        except AmpRewriteError as error:
            return Execution(Placement(refused=error.problem))


html_flag: Any = written_file(
    "--html", "Write an HTML report: the graph, why each node has its precision, coverage, errors."
)

_FLAGS = (html_flag, read_path("--plots", "FOLDER", "Write the report's plots as SVG."))
_SHOWN = {
    "all": "every part of the model with its reason, one line each",
    "ranges": "for every part in half whether its values are proven, or were observed, to fit into half",
    "advice": "what would make half faster on Tensor Cores, and its cost",
    "placement": "in the HTML report, what onnxruntime's CUDA provider executes of the result",
    "latency": "in the HTML report and plots, times of both models, as bench takes them",
}


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """The paths of the report and the plots, None if not requested; `shows` are the values of `--show`."""

    html: Path | None
    plots: Path | None
    shows: tuple[str, ...] = ()

    @property
    def placement(self) -> bool:
        """True if the report shows the placement of the result."""
        return "placement" in self.shows

    @property
    def latency(self) -> bool:
        """True if the report and the plots show measured times."""
        return "latency" in self.shows

    @property
    def asked(self) -> bool:
        """True if a report or plots were requested."""
        return self.html is not None or self.plots is not None

    def write(self, page: HtmlReport) -> None:
        """Write the requested files; raise OutputError."""
        if self.html is not None:
            staging.write(html_file.render(page), self.html)
        if self.plots is not None:
            for name, picture in page.pictures.items():
                pictures.write(picture, self.plots / f"{name}.svg")


def _report_options(flags: Mapping[str, Any]) -> ReportFiles:
    folder = flags["plots"]
    if folder is not None and folder.exists() and not folder.is_dir():
        raise OptionError(f"--plots {folder} is a file", remedy="name a folder")
    files = ReportFiles(flags["html"], folder, flags["show"])
    if files.placement:
        if files.html is None:
            problem = "--show placement is for --html"
            raise OptionError(problem, remedy="add --html FILE, or use amp-rewrite placement")
        refuse_without_runtime()
    if files.latency and not files.asked:
        problem = "--show latency is for --html and --plots"
        raise OptionError(problem, remedy="add one, or use amp-rewrite bench")
    return files


def report_flags(shows: Sequence[str]) -> Flag:
    """Return a decorator that adds these flags to a command and passes them as `ReportFiles`, in
    `report_files`; `shows` are the values that `--show` takes.
    """
    show = words("--show", {word: _SHOWN[word] for word in shows}, "Show more:")
    return grouped((*_FLAGS, show), "report_files", _report_options)


class PageMaker:
    """The builder of the page on the last analysis, as a rewrite may analyze twice.

    `placing` places the result, if requested.
    """

    def __init__(self, dims: Dims, placing: Placing | None = None) -> None:
        self._dims = dims
        self._placing = placing
        self._decided: DecisionView | None = None

    def record(self, analysis: Analysis) -> None:
        """Record the page's view of an analysis, before its model is changed."""
        explanation = explanation_sources.of_analysis(analysis)
        changes = drawn_graph.changes(analysis.graph, explanation.decisions, analysis.plan)
        self._decided = _decided(explanation, analysis.loaded.model, changes, analysis.plan.half)

    def page(self, model: Path, report: Report | None, evidence: Evidence, result: Path) -> HtmlReport:
        """Return the page on the last analysis of a model, with the evidence on its result."""
        assert self._decided is not None, "an analysis is recorded before its page is made"
        coverage = counts.measure(result, self._dims)
        boxes = self._decided.graph.boxes
        placement = self._placing.view(result, boxes) if self._placing else None
        return HtmlReport(str(model), report, self._decided, evidence, coverage, placement)

    def of_step(
        self, model: Path, report: Report, step: ScaledStep, verdict: str, result: Path
    ) -> HtmlReport:
        """Return the page on the last analysis of a train step, with the verdict on it in words."""
        page = self.page(model, report, Evidence(unverified=verdict), result)
        lines = list(scaled_step.lines(step))
        return replace(page, step=html_report.step_view(lines, step.parts, page.decided.graph.boxes))

    def of_plan(self, model: Path, analysis: Analysis) -> HtmlReport:
        """Return the page on a dry run, from a temporary result."""
        self.record(analysis)
        report = analysis.report()
        report = replace(report, warnings=tuple(map(in_flags, report.warnings)))
        with tempfile.TemporaryDirectory() as scratch:
            return self.page(
                model,
                report,
                Evidence(observed=analysis.observed),
                _carried_out(model, analysis, Path(scratch)),
            )

    def of_rewritten(self, model: Path, explanation: Explanation) -> HtmlReport:
        """Return the page on a rewritten model, from the decisions that it carries."""
        self._decided = _decided(
            explanation, _measured(explanation).model, PlannedChanges(), half.named(explanation.half)
        )
        return self.page(model, None, Evidence(), model)


def _carried_out(model: Path, analysis: Analysis, scratch: Path) -> Path:
    """Write the result of an analysis to a folder and return its path."""
    plan = plan_files.dump(analysis.graph, analysis.painting, analysis.plan, analysis.options)
    options = Options(check=False, metadata=False)
    saved, result = (scratch / name for name in ("plan.json", "result.onnx"))
    staging.write(plan.encode(), saved)
    pipeline.rewrite(model, options, output=result, replay=plan_files.load(str(saved)))
    return result


def _decided(explanation: Explanation, model: ir.Model, changes: PlannedChanges, to: Half) -> DecisionView:
    flop_counts = _measured(explanation)
    graph = drawn_graph.build(
        model.graph, flop_counts.types, explanation.decisions, changes, flop_counts.flops
    )
    binades = charts.binades_of_stored(constants.find(model).values())
    ranges = explanation.ranges().units if explanation.analysis else {}
    card = html_report.model_card(model, graph, given_flags())
    return html_report.decision_view(
        graph, explanation.decisions, explanation.causes, binades, to, card, ranges
    )


def _measured(explanation: Explanation) -> FlopCount:
    assert explanation.counted is not None, "only a saved plan has no model"
    return explanation.counted
