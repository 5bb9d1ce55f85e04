"""The content of the HTML report, as one frozen value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from amp_rewrite import version
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.bounds.unit_ranges import UnitRange
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.numerics.half import Half
from amp_rewrite.reporting import binades, drawn_graph, summary
from amp_rewrite.reporting.binades import Binades
from amp_rewrite.reporting.drawn_graph import Box, DrawnGraph, Shade
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.report import Report, StepPart, SummaryLine
from amp_rewrite.running.blame import NodeError
from amp_rewrite.running.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model: its name, its type, and whether it becomes half."""

    kind: str
    name: str
    type: str
    half: bool


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Facts as pairs of words, and the inputs and outputs in their order."""

    facts: tuple[tuple[str, str], ...]
    ports: tuple[Port, ...]


def model_card(model: ir.Model, graph: DrawnGraph, options: str) -> ModelCard:
    """Return the card of a model; `options` are the command's options as text."""
    return ModelCard(tuple(_facts(model, options)), tuple(_ports(graph.boxes)))


def _facts(model: ir.Model, options: str) -> Iterator[tuple[str, str]]:
    producer = " ".join(filter(None, (model.producer_name, model.producer_version)))
    yield "producer", producer or "(not named)"
    opsets = (f"{domain or 'ai.onnx'} {number}" for domain, number in model.graph.opset_imports.items())
    yield "opset", ", ".join(opsets)
    yield "IR version", str(model.ir_version)
    yield "amp-rewrite", version.installed()
    yield "options", options or "(the defaults)"


def _ports(boxes: Sequence[Box]) -> Iterator[Port]:
    for box in boxes:
        if box.shade is Shade.BORDER and box.graph == 0:
            value = (box.outputs or box.inputs)[0]
            yield Port(box.operator, value.name, value.type, value.half)


@dataclass(frozen=True, slots=True)
class StepView:
    """The lines on a train step, and the part of each box; None for boxes other than nodes."""

    lines: tuple[SummaryLine, ...]
    parts: tuple[StepPart | None, ...]


def step_view(lines: Iterable[SummaryLine], parts: Mapping[str, StepPart], boxes: Sequence[Box]) -> StepView:
    """Return the view of a step with these parts of nodes, by output names; all others are forward."""
    return StepView(tuple(lines), tuple(drawn_graph.step_part(box, parts) for box in boxes))


@dataclass(frozen=True, slots=True)
class DecisionView:
    """The decisions about a model, taken before the first edit.

    `ranges` is the knowledge of the values of half units, by position; empty where it was not requested.
    """

    half: Half
    graph: DrawnGraph
    decisions: Decisions
    causes: tuple[RootCause, ...]
    ranges: Mapping[int, UnitRange]
    stored: Binades
    card: ModelCard


@dataclass(frozen=True, slots=True)
class Evidence:
    """Results of runs: the verdict, or in `unverified` the reason for its absence; observed values; and notes
    on the outcome.
    """

    verdict: Verdict | None = None
    unverified: str = ""
    observed: Seen = field(default_factory=dict[str, Any])
    notes: tuple[SummaryLine, ...] = ()


@dataclass(frozen=True, slots=True)
class HtmlReport:
    """The content of an HTML report; `report` is None for a model that was rewritten earlier, `step` for
    models other than train steps.
    """

    title: str
    report: Report | None
    decided: DecisionView
    evidence: Evidence
    coverage: Coverage
    step: StepView | None = None

    def summary_lines(self) -> Iterator[SummaryLine]:
        """Yield the lines of the summary."""
        yield from summary.lines(self.report) if self.report else summary.coverage_lines(self.coverage)
        yield from self.evidence.notes

    @property
    def errors(self) -> tuple[tuple[int, NodeError], ...]:
        """The boxes and the errors of the compared nodes, those that add most first."""
        blame = self.evidence.verdict.blame if self.evidence.verdict is not None else None
        return tuple(_box_errors(self.decided.graph.boxes, blame.nodes)) if blame else ()

    @property
    def suspect(self) -> int | None:
        """The box of the node to look at after a comparison that does not pass; None where there is none."""
        verdict = self.evidence.verdict
        worst = verdict.blame.worst if verdict is not None and verdict.blame and not verdict.ok else None
        return next((box for box, error in self.errors if error == worst), None)

    @property
    def magnitudes(self) -> tuple[tuple[float, float] | None, ...]:
        """The largest observed magnitude of each box's outputs in the original, and as stored in the result;
        None where none was observed.
        """
        finite = {name: each.most for name, each in self.evidence.observed.items() if not each.is_empty}

        def of_box(box: Box) -> tuple[float, float] | None:
            names = [value.name for value in box.outputs if value.name in finite]
            name = max(names, key=finite.__getitem__, default="")
            return (finite[name], math.ldexp(finite[name], -self._exponents.get(name, 0))) if name else None

        return tuple(map(of_box, self.decided.graph.boxes))

    @property
    def _exponents(self) -> Mapping[str, int]:
        rescaled = self.report.rescaled if self.report else None
        return sentences.exponents(rescaled.values if rescaled else ())

    @property
    def histograms(self) -> dict[str, Binades]:
        """Counts of magnitudes by title: of stored numbers, and of node outputs in the original and, if any
        were, rescaled.
        """
        seen, exponents = self.evidence.observed, self._exponents
        counts = {
            "stored numbers": self.decided.stored,
            "node outputs, each by its largest magnitude": binades.of_values(seen),
            "the same, rescaled as in the result": binades.of_values(seen, exponents) if exponents else {},
        }
        return {title: found for title, found in counts.items() if found}


def _box_errors(boxes: Sequence[Box], errors: Iterable[NodeError]) -> Iterator[tuple[int, NodeError]]:
    """Yield the errors of values that are outputs of nodes of the main graph, where names are unique, with
    the boxes of these nodes.
    """
    producers = {
        value.name: i
        for i, box in enumerate(boxes)
        if not box.graph and box.shade not in (Shade.CAST, Shade.BORDER)
        for value in box.outputs
    }
    for error in errors:
        if error.value in producers:
            yield producers[error.value], error
