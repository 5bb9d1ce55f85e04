"""A page as plain data, which its script reads."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from amp_rewrite.reporting import pictures, verdict_text
from amp_rewrite.reporting.drawn_graph import Box, BoxValue
from amp_rewrite.reporting.html_report import BoxError, DrawnCause, Evidence, HtmlReport, UnitReason
from amp_rewrite.running.verification import Output


def plain(page: HtmlReport) -> dict[str, Any]:
    """What the page's script reads, as plain data."""
    drawn = page.decided.network
    return {
        "title": page.title,
        "half": page.decided.half.name,
        "summary": [[line.name, line.text] for line in page.rows()],
        "coverage": {**page.coverage.summary(), "assumptions": list(page.coverage.assumptions)},
        "verification": _plain_verdict(page.evidence),
        "constants": drawn.constants,
        "frames": [{"title": f.title, "owner": f.owner} for f in drawn.frames],
        "boxes": list(map(_plain_box, drawn.boxes)),
        "wires": [[wire.maker, wire.reader] for wire in drawn.wires],
        "held": list(map(_plain_held, page.decided.held)),
        "reasons": list(map(_plain_reason, page.decided.reasons)),
        "misfits": list(map(_plain_misfit, page.misfits)),
        "pictures": list(map(pictures.plain, page.pictures.values())),
    }


def _plain_verdict(evidence: Evidence) -> dict[str, Any]:
    verdict = evidence.verdict
    if verdict is None:
        return {"ok": None, "how": evidence.unverified or "Nothing was run.", "rows": [], "faults": []}
    return {
        "ok": verdict.ok,
        "how": verdict_text.how(verdict),
        "columns": verdict_text.COLUMNS,
        "rows": list(map(_plain_output, verdict.outputs)),
        "faults": list(verdict.faults),
    }


def _plain_output(output: Output) -> dict[str, Any]:
    """An output that holds nothing to compare is neither good nor bad."""
    ok = not output.broken if output.broken or output.is_compared else None
    return {"cells": verdict_text.cells(output), "ok": ok}


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
        "flops": box.flops,
    }


def _plain_port(port: BoxValue) -> dict[str, Any]:
    return {"name": port.name, "type": port.type, "half": port.half, "stored": port.stored}


def _plain_reason(reason: UnitReason) -> dict[str, Any]:
    return {**reason.step.to_json(), "cause": reason.cause, "box": reason.box}


def _plain_held(held: DrawnCause) -> dict[str, Any]:
    return {**asdict(held.words), "boxes": held.boxes}


def _plain_misfit(misfit: BoxError) -> dict[str, Any]:
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
