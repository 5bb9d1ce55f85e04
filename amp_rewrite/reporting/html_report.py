"""The content of the HTML report, as one frozen value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amp_rewrite.analysis.observed import Seen
from amp_rewrite.bounds.unit_ranges import UnitRange
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.sentences import Paragraph, Step
from amp_rewrite.numerics.half import Half
from amp_rewrite.reporting import latency_chart, plots, search_chart, summary
from amp_rewrite.reporting.binades import Binades
from amp_rewrite.reporting.drawn_graph import Box, DrawnGraph, Shade
from amp_rewrite.reporting.executed_graph import PlacementView
from amp_rewrite.reporting.model_card import ModelCard
from amp_rewrite.reporting.pictures import Picture
from amp_rewrite.reporting.plots import Point
from amp_rewrite.reporting.search_chart import Search
from amp_rewrite.reporting.step_view import StepView
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.report import Report
from amp_rewrite.running.blame import NodeError
from amp_rewrite.running.latency import Bench
from amp_rewrite.running.verdict import Verdict


@dataclass(frozen=True, slots=True)
class UnitReason:
    """The first step of a unit's chain of causes, the unit that is its cause, and the unit's box.

    `box` is None for a unit that is no longer in a rewritten model. `range` says what is known of the values
    of a half unit, None where nobody looked.
    """

    step: Step
    cause: int | None
    box: int | None
    range: UnitRange | None


@dataclass(frozen=True, slots=True)
class DrawnCause:
    """A cause of float32 as text, and the boxes of the nodes that it holds."""

    text: Paragraph
    boxes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecisionView:
    """The decisions about a model, taken before anything changes."""

    half: Half
    graph: DrawnGraph
    reasons: tuple[UnitReason, ...]
    causes: tuple[DrawnCause, ...]
    stored: Binades
    card: ModelCard


@dataclass(frozen=True, slots=True)
class Evidence:
    """Results of runs: the verdict, or in `unverified` why there is none; observed values; latencies; the
    search for a plan; and what is to be said of the outcome.
    """

    verdict: Verdict | None = None
    unverified: str = ""
    observed: Seen = field(default_factory=dict[str, Any])
    bench: Bench | None = None
    search: Search = field(default_factory=Search)
    notes: tuple[SummaryLine, ...] = ()


@dataclass(frozen=True, slots=True)
class BoxError:
    """The error of an output of a box of the main graph."""

    box: int
    found: NodeError


@dataclass(frozen=True, slots=True)
class HtmlReport:
    """The content of an HTML report; `report` is None for a model that was rewritten earlier, `placement`
    where nobody asked for it, `step` for what is not a train step.
    """

    title: str
    report: Report | None
    decided: DecisionView
    evidence: Evidence
    coverage: Coverage
    placement: PlacementView | None = None
    step: StepView | None = None

    def summary_lines(self) -> Iterator[SummaryLine]:
        """The lines of the summary."""
        yield from summary.lines(self.report) if self.report else summary.coverage_lines(self.coverage)
        yield from self.evidence.notes

    @property
    def errors(self) -> tuple[BoxError, ...]:
        """The errors of the compared nodes, those that add most first."""
        blame = self.evidence.verdict.blame if self.evidence.verdict else None
        return tuple(_box_errors(self.decided.graph.boxes, blame.nodes)) if blame else ()

    @property
    def pictures(self) -> dict[str, Picture]:
        """The plots, by their file names (PICTURES)."""
        found: dict[str, Picture] = {}
        points = _points(self.decided.graph.boxes, self.errors)
        if points:
            found["errors"] = plots.errors(points)
        observed = plots.binades_of_values(self.evidence.observed)
        if self.decided.stored or observed:
            found["ranges"] = plots.ranges(self.decided.stored, observed, self.decided.half)
        if sensitivities := list(self._sensitivities()):
            found["sensitivity"] = plots.errors(sensitivities, "Error that rounding at each node adds")
        if self.evidence.search.plans:
            found["search"] = search_chart.chart(self.evidence.search)
        if self.evidence.bench is not None:
            found["latency"] = latency_chart.chart(self.evidence.bench)
        return found

    def _sensitivities(self) -> Iterator[Point]:
        """What rounding adds at the nodes of the main graph, as a search found it, or the comparison."""
        effects = {error.found.node: error.found.effect for error in self.errors if error.found.effect}
        named = self.evidence.search.sensitivity or effects
        main = [box for box in self.decided.graph.boxes if not box.graph]
        for at, box in enumerate(main):
            if box.name in named:
                error = named[box.name]
                label = f"{box.operator} {box.name}"
                yield Point(at / max(len(main) - 1, 1), error, not math.isfinite(error), label)


PICTURES = ("errors", "ranges", "sensitivity", "search", "latency")


def decision_view(
    drawn: DrawnGraph,
    decisions: Decisions,
    causes: Iterable[RootCause],
    stored: Binades,
    half: Half,
    card: ModelCard,
    ranges: Mapping[int, UnitRange] | None = None,
) -> DecisionView:
    """The decisions about a model for its report; `ranges` has what is known of half units, by position."""
    box_of = {unit: i for i, box in enumerate(drawn.boxes) for unit in box.units}
    reasons = (
        UnitReason(
            sentences.first_step(decisions, unit),
            decisions.cause(unit),
            box_of.get(unit),
            (ranges or {}).get(unit),
        )
        for unit in range(len(decisions.all))
    )
    drawn_causes = (
        DrawnCause(sentences.of_cause(cause), tuple(box_of[unit] for unit in cause.held if unit in box_of))
        for cause in causes
    )
    return DecisionView(half, drawn, tuple(reasons), tuple(drawn_causes), stored, card)


def _box_errors(boxes: Sequence[Box], found: Iterable[NodeError]) -> Iterator[BoxError]:
    """The errors of values that are outputs of nodes of the main graph, where names are unique."""
    producers = {
        value.name: i
        for i, box in enumerate(boxes)
        if not box.graph and box.shade not in (Shade.CAST, Shade.BORDER)
        for value in box.outputs
    }
    for error in found:
        if error.value in producers:
            yield BoxError(producers[error.value], error)


def _points(boxes: Sequence[Box], errors: Iterable[BoxError]) -> list[Point]:
    """The errors with the positions of their nodes in the main graph, from 0 to 1."""
    last = max(sum(not box.graph for box in boxes) - 1, 1)
    found = (
        Point(m.box / last, m.found.error, bool(m.found.non_finite), f"{m.found.operator} {m.found.node}")
        for m in errors
    )
    return sorted(found, key=lambda point: point.position)
