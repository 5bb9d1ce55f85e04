"""What the HTML report says, as plain data: one frozen value that its template only lays out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from amp_rewrite.decisions import Decisions
from amp_rewrite.half import Half
from amp_rewrite.observed import Observed
from amp_rewrite.reporting import charts, pictures, plots, sentences, summary, verdicts
from amp_rewrite.reporting.causes import RootCause
from amp_rewrite.reporting.coverage.counts import Coverage
from amp_rewrite.reporting.network import Box, Network, Port, Shade
from amp_rewrite.reporting.pictures import Picture
from amp_rewrite.reporting.plots import Binades, Point
from amp_rewrite.reporting.report import Report
from amp_rewrite.reporting.sentences import Paragraph, Step
from amp_rewrite.reporting.summary import Line
from amp_rewrite.running.blame import NodeError
from amp_rewrite.running.latency import Bench
from amp_rewrite.running.verification import Output, Verdict


@dataclass(frozen=True, slots=True)
class Reason:
    """The first step of the chain of a unit, the unit that caused it, and the box that shows it.

    What caused it may be gone from a model that was rewritten: then it has no box.
    """

    step: Step
    cause: int | None
    box: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """What holds nodes back in float32, in words, and the boxes of these nodes."""

    words: Paragraph
    boxes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """What is known of a model once all is decided, and before anything changes."""

    half: Half
    network: Network
    reasons: tuple[Reason, ...]
    held: tuple[Held, ...]
    stored: Binades


@dataclass(frozen=True, slots=True)
class Evidence:
    """What runs have shown: the verdict, or in `unverified` why there is none; magnitudes; latencies."""

    verdict: Verdict | None = None
    unverified: str = ""
    seen: Observed = field(default_factory=dict[str, Any])
    bench: Bench | None = None


@dataclass(frozen=True, slots=True)
class Misfit:
    """The error of a value that a box of the main graph makes."""

    box: int
    found: NodeError


@dataclass(frozen=True, slots=True)
class Page:
    """All that an HTML report shows of the model that is called `title`.

    A model that was rewritten before, and is only looked at, has no `report`.
    """

    title: str
    report: Report | None
    decided: Decided
    evidence: Evidence
    coverage: Coverage

    def _summary(self) -> Iterator[Line]:
        return summary.lines(self.report) if self.report else summary.of_coverage(self.coverage)

    @property
    def misfits(self) -> tuple[Misfit, ...]:
        """The errors of the nodes that were compared, those that add most first."""
        blame = self.evidence.verdict.blame if self.evidence.verdict else None
        return tuple(_misfits(self.decided.network.boxes, blame.nodes)) if blame else ()

    @property
    def pictures(self) -> dict[str, Picture]:
        """What there is to plot, by the names that the files get."""
        found: dict[str, Picture] = {}
        points = _points(self.decided.network.boxes, self.misfits)
        if points:
            found["errors"] = plots.errors(points)
        made = plots.binades_of_values(self.evidence.seen)
        if self.decided.stored or made:
            found["ranges"] = plots.ranges(self.decided.stored, made, self.decided.half)
        if self.evidence.bench is not None:
            found["latency"] = charts.chart(self.evidence.bench)
        return found

    def to_json(self) -> dict[str, Any]:
        """What the page's script reads, as plain data."""
        drawn = self.decided.network
        return {
            "title": self.title,
            "half": self.decided.half.name,
            "summary": [[line.name, line.text] for line in self._summary()],
            "coverage": {**self.coverage.summary(), "assumptions": list(self.coverage.assumptions)},
            "verification": _plain_verdict(self.evidence),
            "constants": drawn.constants,
            "frames": [{"title": f.title, "owner": f.owner} for f in drawn.frames],
            "boxes": list(map(_plain_box, drawn.boxes)),
            "wires": [[wire.maker, wire.reader] for wire in drawn.wires],
            "held": list(map(_plain_held, self.decided.held)),
            "reasons": list(map(_plain_reason, self.decided.reasons)),
            "misfits": list(map(_plain_misfit, self.misfits)),
            "pictures": list(map(pictures.plain, self.pictures.values())),
        }


def decided(
    drawn: Network, decisions: Decisions, causes: Iterable[RootCause], stored: Binades, half: Half
) -> Decided:
    """What a page shows of a model before it changes."""
    box_of = {unit: box for box, held in enumerate(drawn.boxes) for unit in held.units}
    reasons = (_reason(decisions, unit, box_of.get(unit)) for unit in range(len(decisions.all)))
    held = (
        Held(sentences.of_cause(cause), tuple(box_of[unit] for unit in cause.held if unit in box_of))
        for cause in causes
    )
    return Decided(half, drawn, tuple(reasons), tuple(held), stored)


def _reason(decisions: Decisions, unit: int, box: int | None) -> Reason:
    """A chain ends where Decisions.why ends it."""
    _, *causes = decisions.why(unit)[:2]
    return Reason(sentences.first_step(decisions, unit), next(iter(causes), None), box)


def _misfits(boxes: Sequence[Box], found: Iterable[NodeError]) -> Iterator[Misfit]:
    """A run gives out the values of the main graph, whose names are unique there."""
    made = ((i, port) for i, box in enumerate(boxes) if _is_compared(box) for port in box.makes)
    makers = {port.name: i for i, port in made}
    for error in found:
        if error.value in makers:
            yield Misfit(makers[error.value], error)


def _is_compared(box: Box) -> bool:
    return not box.graph and box.shade not in (Shade.CAST, Shade.BORDER)


def _points(boxes: Sequence[Box], misfits: Iterable[Misfit]) -> list[Point]:
    """The errors in the order of the graph, by the place of their nodes among all that are drawn."""
    last = max(sum(not box.graph for box in boxes) - 1, 1)
    found = (
        Point(m.box / last, m.found.error, bool(m.found.non_finite), f"{m.found.operator} {m.found.node}")
        for m in misfits
    )
    return sorted(found, key=lambda point: point.place)


def _plain_verdict(evidence: Evidence) -> dict[str, Any]:
    verdict = evidence.verdict
    if verdict is None:
        return {"ok": None, "how": evidence.unverified or "Nothing was run.", "rows": [], "faults": []}
    return {
        "ok": verdict.ok,
        "how": verdicts.how(verdict),
        "columns": verdicts.COLUMNS,
        "rows": list(map(_plain_output, verdict.outputs)),
        "faults": list(verdicts.faults(verdict)),
    }


def _plain_output(output: Output) -> dict[str, Any]:
    return {"cells": verdicts.cells(output), "ok": not output.broken}


def _plain_box(box: Box) -> dict[str, Any]:
    return {
        "graph": box.graph,
        "operator": box.operator,
        "name": box.name,
        "shade": box.shade.value,
        "units": box.units,
        "reads": list(map(_plain_port, box.reads)),
        "makes": list(map(_plain_port, box.makes)),
        "bodies": box.bodies,
    }


def _plain_port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "type": port.type, "half": port.half, "stored": port.stored}


def _plain_reason(reason: Reason) -> dict[str, Any]:
    return {**reason.step.to_json(), "cause": reason.cause, "box": reason.box}


def _plain_held(held: Held) -> dict[str, Any]:
    return {**asdict(held.words), "boxes": held.boxes}


def _plain_misfit(misfit: Misfit) -> dict[str, Any]:
    """Errors as text for people, and as a number where one is coloured by; JSON has no word for infinity."""
    found = misfit.found
    return {
        "box": misfit.box,
        "value": found.value,
        "error": f"{found.error:.1e}",
        "added": f"{found.added:.1e}",
        "size": min(found.error, _WORST),
        "lost": found.non_finite,
        "reads": None if found.low is None or found.high is None else f"{found.low:.3g} to {found.high:.3g}",
    }


_WORST = 1e30
