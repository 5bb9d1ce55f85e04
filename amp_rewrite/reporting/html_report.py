"""What the HTML report says, as plain data: one frozen value that its template only lays out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from amp_rewrite.analysis.observed import Observed
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.sentences import Paragraph, Step
from amp_rewrite.numerics.half import Half
from amp_rewrite.reporting import latency_chart, plots, summary
from amp_rewrite.reporting.drawn_graph import Box, DrawnGraph, Shade
from amp_rewrite.reporting.pictures import Picture
from amp_rewrite.reporting.plots import Binades, Point
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.report import Report
from amp_rewrite.running.blame import NodeError
from amp_rewrite.running.latency import Bench
from amp_rewrite.running.verification import Verdict


@dataclass(frozen=True, slots=True)
class UnitReason:
    """The first step of the chain of a unit, the unit that caused it, and the box that shows it.

    What caused it may be gone from a model that was rewritten: then it has no box.
    """

    step: Step
    cause: int | None
    box: int | None


@dataclass(frozen=True, slots=True)
class DrawnCause:
    """What holds nodes back in float32, in words, and the boxes of these nodes."""

    words: Paragraph
    boxes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecisionView:
    """What is known of a model once all is decided, and before anything changes."""

    half: Half
    network: DrawnGraph
    reasons: tuple[UnitReason, ...]
    held: tuple[DrawnCause, ...]
    stored: Binades


@dataclass(frozen=True, slots=True)
class Evidence:
    """What runs have shown: the verdict, or in `unverified` why there is none; magnitudes; latencies."""

    verdict: Verdict | None = None
    unverified: str = ""
    seen: Observed = field(default_factory=dict[str, Any])
    bench: Bench | None = None


@dataclass(frozen=True, slots=True)
class BoxError:
    """The error of a value that a box of the main graph makes."""

    box: int
    found: NodeError


@dataclass(frozen=True, slots=True)
class HtmlReport:
    """All that an HTML report shows of the model that is called `title`.

    A model that was rewritten before, and is only looked at, has no `report`.
    """

    title: str
    report: Report | None
    decided: DecisionView
    evidence: Evidence
    coverage: Coverage

    def rows(self) -> Iterator[SummaryLine]:
        """The rows at the top of the page."""
        return summary.lines(self.report) if self.report else summary.of_coverage(self.coverage)

    @property
    def misfits(self) -> tuple[BoxError, ...]:
        """The errors of the nodes that were compared, those that add most first."""
        blame = self.evidence.verdict.blame if self.evidence.verdict else None
        return tuple(_misfits(self.decided.network.boxes, blame.nodes)) if blame else ()

    @property
    def pictures(self) -> dict[str, Picture]:
        """What there is to plot, by the names that the files get (PICTURES)."""
        found: dict[str, Picture] = {}
        points = _points(self.decided.network.boxes, self.misfits)
        if points:
            found["errors"] = plots.errors(points)
        made = plots.binades_of_values(self.evidence.seen)
        if self.decided.stored or made:
            found["ranges"] = plots.ranges(self.decided.stored, made, self.decided.half)
        if self.evidence.bench is not None:
            found["latency"] = latency_chart.chart(self.evidence.bench)
        return found


PICTURES = ("errors", "ranges", "latency")


def decided(
    drawn: DrawnGraph, decisions: Decisions, causes: Iterable[RootCause], stored: Binades, half: Half
) -> DecisionView:
    """What a page shows of a model before it changes."""
    box_of = {unit: box for box, held in enumerate(drawn.boxes) for unit in held.units}
    reasons = (_reason(decisions, unit, box_of.get(unit)) for unit in range(len(decisions.all)))
    held = (
        DrawnCause(sentences.of_cause(cause), tuple(box_of[unit] for unit in cause.held if unit in box_of))
        for cause in causes
    )
    return DecisionView(half, drawn, tuple(reasons), tuple(held), stored)


def _reason(decisions: Decisions, unit: int, box: int | None) -> UnitReason:
    """A chain ends where Decisions.why ends it."""
    return UnitReason(sentences.first_step(decisions, unit), decisions.cause(unit), box)


def _misfits(boxes: Sequence[Box], found: Iterable[NodeError]) -> Iterator[BoxError]:
    """A run gives out the values of the main graph, whose names are unique there."""
    made = ((i, port) for i, box in enumerate(boxes) if _is_compared(box) for port in box.makes)
    makers = {port.name: i for i, port in made}
    for error in found:
        if error.value in makers:
            yield BoxError(makers[error.value], error)


def _is_compared(box: Box) -> bool:
    return not box.graph and box.shade not in (Shade.CAST, Shade.BORDER)


def _points(boxes: Sequence[Box], misfits: Iterable[BoxError]) -> list[Point]:
    """The errors in the order of the graph, by the place of their nodes among all that are drawn."""
    last = max(sum(not box.graph for box in boxes) - 1, 1)
    found = (
        Point(m.box / last, m.found.error, bool(m.found.non_finite), f"{m.found.operator} {m.found.node}")
        for m in misfits
    )
    return sorted(found, key=lambda point: point.place)
