"""The page behind the flag `--html`."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from amp_rewrite import pipeline
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flags import given_flags
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.coverage import counts
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model import constants
from amp_rewrite.numerics import half
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.policy.options import Options
from amp_rewrite.reporting import binades, drawn_graph, explanations, html_report
from amp_rewrite.reporting.drawn_graph import PlannedChanges
from amp_rewrite.reporting.explanations import Explanation
from amp_rewrite.reporting.html_report import DecisionView, Evidence, HtmlReport
from amp_rewrite.rewriting.report import Report
from amp_rewrite.training import scaled_step
from amp_rewrite.training.scaled_step import ScaledStep


class PageMaker:
    """The builder of the page on the last analysis, as a rewrite may analyze twice."""

    def __init__(self, dims: Dims) -> None:
        self._dims = dims
        self._decided: DecisionView | None = None

    def record(self, analysis: Analysis) -> None:
        """Record the page's view of an analysis, before its model is changed."""
        explanation = explanations.of_analysis(analysis)
        changes = drawn_graph.changes(analysis.graph, explanation.decisions, analysis.plan)
        self._decided = _decided(explanation, analysis.loaded.model, changes, analysis.plan.half)

    def page(self, model: Path, report: Report | None, evidence: Evidence, result: Path) -> HtmlReport:
        """Return the page on the last analysis of a model, with the evidence on its result."""
        assert self._decided is not None, "an analysis is recorded before its page is made"
        coverage = counts.measure(result, self._dims)
        return HtmlReport(str(model), report, self._decided, evidence, coverage)

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
    options, result = Options(check=False, metadata=False), scratch / "result.onnx"
    pipeline.rewrite(model, options, output=result, replay=analysis.saved_plan())
    return result


def _decided(explanation: Explanation, model: ir.Model, changes: PlannedChanges, to: Half) -> DecisionView:
    flop_counts = _measured(explanation)
    graph = drawn_graph.build(
        model.graph, flop_counts.types, explanation.decisions, changes, flop_counts.flops
    )
    stored = binades.of_stored(constants.find(model).values())
    ranges = explanation.ranges().units if explanation.analysis else {}
    card = html_report.model_card(model, graph, given_flags())
    return DecisionView(to, graph, explanation.decisions, explanation.causes, ranges, stored, card)


def _measured(explanation: Explanation) -> FlopCount:
    assert explanation.counted is not None, "only a saved plan has no model"
    return explanation.counted
