"""What the HTML report says, as plain data: one frozen value that its template only lays out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from amp_rewrite.colours import Painting
from amp_rewrite.plan import Plan
from amp_rewrite.reporting import network, sentences
from amp_rewrite.reporting.network import Box, Network, Port, Shade
from amp_rewrite.reporting.pictures import Picture
from amp_rewrite.reporting.report import Report
from amp_rewrite.reporting.sentences import Line, Step
from amp_rewrite.running.blame import Blame, NodeError
from amp_rewrite.running.verification import Output, Verdict
from amp_rewrite.units import UnitGraph


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for a unit: the first step of its chain, the box that shows it, the unit that caused it."""

    step: Step
    box: int
    cause: int | None


@dataclass(frozen=True, slots=True)
class Misfit:
    """The error of a value that a box of the main graph makes."""

    box: int
    found: NodeError


@dataclass(frozen=True, slots=True)
class Page:
    """All that an HTML report shows.

    `unverified` says why there is no verdict, where there is none. `misfits` come as the blame has them, those that
    add most error first.
    """

    title: str
    half: str
    summary: tuple[Line, ...]
    network: Network
    decisions: tuple[Decision, ...]
    verdict: Verdict | None
    unverified: str
    misfits: tuple[Misfit, ...]
    pictures: tuple[Picture, ...]

    def to_json(self) -> dict[str, Any]:
        """What the page's script reads, as plain data; the pictures are no part of it."""
        return {
            "half": self.half,
            "constants": self.network.constants,
            "frames": [{"title": f.title, "owner": f.owner} for f in self.network.frames],
            "boxes": list(map(_plain_box, self.network.boxes)),
            "wires": [[wire.maker, wire.reader] for wire in self.network.wires],
            "decisions": list(map(_plain_decision, self.decisions)),
            "misfits": list(map(_plain_misfit, self.misfits)),
        }


def make(
    title: str,
    graph: UnitGraph,
    painting: Painting,
    plan: Plan,
    report: Report,
    verdict: Verdict | None,
    unverified: str = "",
) -> Page:
    """The page of a model; the model must not have been changed yet."""
    drawn = network.build(graph, painting, plan)
    blame = verdict.blame if verdict else None
    misfits = tuple(_misfits(drawn.boxes, blame)) if blame else ()
    return Page(
        title=title,
        half=plan.half.name,
        summary=tuple(sentences.summary(report)),
        network=drawn,
        decisions=tuple(_decisions(graph, painting, drawn)),
        verdict=verdict,
        unverified=unverified,
        misfits=misfits,
        pictures=(),
    )


def _decisions(graph: UnitGraph, painting: Painting, drawn: Network) -> Iterator[Decision]:
    box_of = {unit: box for box, held in enumerate(drawn.boxes) for unit in held.units}
    for index, paint in enumerate(painting.paints):
        yield Decision(sentences.first_step(graph, painting, index), box_of[index], paint.cause)


def _misfits(boxes: Sequence[Box], blame: Blame) -> Iterator[Misfit]:
    """A run gives out the values of the main graph, whose names are unique there."""
    nodes = (
        (i, box) for i, box in enumerate(boxes) if not box.graph and box.shade not in (Shade.CAST, Shade.BORDER)
    )
    makers = {port.name: i for i, box in nodes for port in box.makes if port.name}
    for found in blame.nodes:
        if found.value in makers:
            yield Misfit(makers[found.value], found)


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


def _plain_decision(decision: Decision) -> dict[str, Any]:
    step = decision.step
    return {
        "unit": step.unit,
        "colour": step.colour.value,
        "rule": step.rule.value,
        "kind": step.kind.value,
        "reason": step.reason,
        "box": decision.box,
        "cause": decision.cause,
    }


def _plain_misfit(misfit: Misfit) -> dict[str, Any]:
    found = misfit.found
    return {
        "box": misfit.box,
        "value": found.value,
        "error": f"{found.error:.1e}",
        "added": f"{found.added:.1e}",
        "log": _log(found.error),
        "lost": found.non_finite,
        "low": None if found.low is None else f"{found.low:.3g}",
        "high": None if found.high is None else f"{found.high:.3g}",
    }
