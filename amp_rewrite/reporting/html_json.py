"""The content of an HTML report as plain data for the page's scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from amp_rewrite.explaining import sentences
from amp_rewrite.reporting import pictures, verdict_text
from amp_rewrite.reporting.drawn_graph import DrawnGraph
from amp_rewrite.reporting.executed_graph import ExecutedGraph, PlacementView
from amp_rewrite.reporting.html_report import BoxError, Evidence, HtmlReport, UnitReason
from amp_rewrite.reporting.step_view import StepView
from amp_rewrite.running.verdict import Output


def plain(report: HtmlReport) -> dict[str, Any]:
    """The whole report as plain data."""
    view = report.decided
    return {
        "title": report.title,
        "half": view.half.name,
        "summary": [[line.name, line.text] for line in report.summary_lines()],
        "coverage": {**report.coverage.summary(), "assumptions": list(report.coverage.assumptions)},
        "card": asdict(view.card),
        "verification": _plain_verdict(report.evidence),
        **_plain_graph(view.graph),
        "causes": [asdict(cause.text) | {"boxes": cause.boxes} for cause in view.causes],
        "reasons": [_plain_reason(reason) for reason in view.reasons],
        "errors": list(map(_plain_error, report.errors)),
        "pictures": list(map(pictures.plain, report.pictures.values())),
        "placement": _plain_placement(report.placement) if report.placement else None,
        "step": _plain_step(report.step) if report.step else None,
    }


def _plain_step(step: StepView) -> dict[str, Any]:
    return {
        "lines": [[line.name, line.text] for line in step.lines],
        "parts": [part and part.value for part in step.parts],
    }


def _plain_reason(reason: UnitReason) -> dict[str, Any]:
    """Why a unit has its colour, and for a half unit what is known of its values."""
    known = reason.range
    told = known and {"knowledge": known.knowledge.value, "text": sentences.of_unit(known)}
    return {**reason.step.to_json(), "cause": reason.cause, "box": reason.box, "range": told}


def _plain_graph(graph: DrawnGraph) -> dict[str, Any]:
    return {
        "constants": graph.constants,
        "frames": list(map(asdict, graph.frames)),
        "boxes": [asdict(box) | {"shade": box.shade.value} for box in graph.boxes],
        "wires": [[wire.source, wire.target] for wire in graph.wires],
    }


def _plain_placement(view: PlacementView) -> dict[str, Any]:
    """What got worse is marked; `executed` is the graph that is executed, with what its boxes stand for."""
    compared, original = view.compared, view.compared.original
    return {
        "runtime": compared.runtime.to_json(),
        "refused": compared.result.refused,
        "original_refused": original.refused if original else "",
        "counts": [asdict(count) for count in compared.counts()],
        "fused": compared.result.fused,
        "on_cpu": [{**asdict(group), "why": group.why.value} for group in compared.result.on_cpu],
        "executed": _plain_executed(view.executed) if view.executed else None,
    }


def _plain_executed(graph: ExecutedGraph) -> dict[str, Any]:
    drawn = _plain_graph(graph.drawn)
    for box, node in zip(drawn["boxes"], graph.nodes, strict=True):
        box["executed"] = asdict(node) if node else None
    return drawn


def _plain_verdict(evidence: Evidence) -> dict[str, Any]:
    verdict = evidence.verdict
    if verdict is None:
        return {
            "ok": None,
            "said": "not compared with the original",
            "how": evidence.unverified or "Nothing was run.",
            "rows": [],
            "faults": [],
            "next": [],
        }
    return {
        "ok": verdict.ok,
        "said": verdict_text.in_short(verdict),
        "how": verdict_text.describe(verdict),
        "columns": verdict_text.COLUMNS,
        "rows": list(map(_plain_output, verdict.outputs)),
        "notes": [*verdict_text.notes(verdict), *map(verdict_text.of_tried, verdict.tried)],
        "faults": list(verdict.faults),
        "next": list(verdict_text.hints(verdict)),
    }


def _plain_output(output: Output) -> dict[str, Any]:
    """The cells of an output; `ok` is None for one with nothing to compare, or that float32 does not tell."""
    is_judged = output.broken or (output.is_compared and not output.is_undecided)
    return {"cells": verdict_text.cells(output), "ok": not output.broken if is_judged else None}


def _plain_error(box_error: BoxError) -> dict[str, Any]:
    """Errors as text, and `size` as a number for the colour scale: JSON has no infinity."""
    found = box_error.found
    return {
        "box": box_error.box,
        "value": found.value,
        "error": f"{found.error:.1e}",
        "added": f"{found.added:.1e}",
        "effect": None if found.effect is None else f"{found.effect:.1e}",
        "size": min(found.error, _WORST),
        "non_finite": found.non_finite,
        "reads": None if found.low is None or found.high is None else f"{found.low:.3g} to {found.high:.3g}",
    }


_WORST = 1e30
