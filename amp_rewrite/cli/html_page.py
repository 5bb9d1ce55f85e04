"""The page behind the flag `--html`."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from amp_rewrite import pipeline
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flags import given_flags
from amp_rewrite.coverage import counts
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.numerics import half
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.policy.options import Options
from amp_rewrite.reporting import explanations, page
from amp_rewrite.reporting.explanations import Explanation
from amp_rewrite.reporting.page import Page, RunEvidence
from amp_rewrite.rewriting.report import Report


class PageMaker:
    """The builder of the page on the last analysis, as a rewrite may analyze twice."""

    def __init__(self, dims: Dims) -> None:
        self._dims = dims
        self._decided: Page = {}

    def record(self, analysis: Analysis) -> None:
        """Record the page's view of an analysis, before its model is changed."""
        explanation = explanations.of_analysis(analysis)
        self._decided = _decided(explanation, analysis.loaded.model)

    def page(self, model: Path, report: Report | None, evidence: RunEvidence, coverage: Coverage) -> Page:
        """Return the page on the last analysis of a model, with the evidence on its result."""
        assert self._decided, "an analysis is recorded before its page is made"
        return page.of(str(model), report, self._decided, evidence, coverage)

    def of_plan(self, model: Path, analysis: Analysis) -> Page:
        """Return the page on a dry run, from a temporary result."""
        self.record(analysis)
        report = analysis.report()
        report = replace(report, warnings=tuple(map(in_flags, report.warnings)))
        exponents = sentences.exponents(analysis.plan.rescaled)  # observed is what is stored
        evidence = RunEvidence(magnitudes=page.magnitudes(analysis.observed, exponents))
        with tempfile.TemporaryDirectory() as scratch:
            result = _carried_out(model, analysis, Path(scratch))
            return self.page(model, report, evidence, counts.measure(result, self._dims))

    def of_rewritten(self, model: Path, explanation: Explanation) -> Page:
        """Return the page on a rewritten model, from the decisions that it carries."""
        assert explanation.counted is not None, "only a saved plan has no model"
        self._decided = _decided(explanation, explanation.counted.model)
        return self.page(model, None, RunEvidence(), counts.measure(model, self._dims))


def _carried_out(model: Path, analysis: Analysis, scratch: Path) -> Path:
    """Write the result of an analysis to a folder and return its path."""
    options, result = Options(check=False, metadata=False), scratch / "result.onnx"
    pipeline.rewrite(model, options, output=result, replay=analysis.saved_plan())
    return result


def _decided(explanation: Explanation, model: ir.Model) -> Page:
    assert explanation.counted is not None, "only a saved plan has no model"
    return page.decided(
        model,
        half.BY_NAME[explanation.half],
        explanation.decisions,
        explanation.causes,
        explanation.counted,
        explanation.analysis,
        given_flags(),
    )
