"""The content of an HTML report as plain data for the page's scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from amp_rewrite.reporting import pictures, verdict_text
from amp_rewrite.reporting.html_report import BoxError, Evidence, HtmlReport
from amp_rewrite.running.verification import Output


def plain(report: HtmlReport) -> dict[str, Any]:
    """The whole report as plain data."""
    view = report.decided
    return {
        "title": report.title,
        "half": view.half.name,
        "summary": [[line.name, line.text] for line in report.summary_lines()],
        "coverage": {**report.coverage.summary(), "assumptions": list(report.coverage.assumptions)},
        "verification": _plain_verdict(report.evidence),
        "constants": view.graph.constants,
        "frames": list(map(asdict, view.graph.frames)),
        "boxes": [asdict(box) | {"shade": box.shade.value} for box in view.graph.boxes],
        "wires": [[wire.source, wire.target] for wire in view.graph.wires],
        "causes": [asdict(cause.text) | {"boxes": cause.boxes} for cause in view.causes],
        "reasons": [{**r.step.to_json(), "cause": r.cause, "box": r.box} for r in view.reasons],
        "errors": list(map(_plain_error, report.errors)),
        "pictures": list(map(pictures.plain, report.pictures.values())),
    }


def _plain_verdict(evidence: Evidence) -> dict[str, Any]:
    verdict = evidence.verdict
    if verdict is None:
        return {"ok": None, "how": evidence.unverified or "Nothing was run.", "rows": [], "faults": []}
    return {
        "ok": verdict.ok,
        "how": verdict_text.describe(verdict),
        "columns": verdict_text.COLUMNS,
        "rows": list(map(_plain_output, verdict.outputs)),
        "faults": list(verdict.faults),
    }


def _plain_output(output: Output) -> dict[str, Any]:
    """The cells of an output; `ok` is None for one with nothing to compare."""
    ok = not output.broken if output.broken or output.is_compared else None
    return {"cells": verdict_text.cells(output), "ok": ok}


def _plain_error(box_error: BoxError) -> dict[str, Any]:
    """Errors as text, and `size` as a number for the colour scale: JSON has no infinity."""
    found = box_error.found
    return {
        "box": box_error.box,
        "value": found.value,
        "error": f"{found.error:.1e}",
        "added": f"{found.added:.1e}",
        "size": min(found.error, _WORST),
        "non_finite": found.non_finite,
        "reads": None if found.low is None or found.high is None else f"{found.low:.3g} to {found.high:.3g}",
    }


_WORST = 1e30
