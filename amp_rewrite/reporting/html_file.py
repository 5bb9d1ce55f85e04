"""Rendering of an HTML report as one self-contained file.

Content of a model is embedded as JSON, which cannot end a script or begin a comment, and inserted into
the document as text. A content security policy forbids all other scripts and all loading.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amp_rewrite.explaining import sentences
from amp_rewrite.files import staging
from amp_rewrite.reporting import verdict_text
from amp_rewrite.reporting.drawn_graph import DrawnGraph
from amp_rewrite.reporting.html_report import DecisionView, Evidence, HtmlReport
from amp_rewrite.rewriting import records
from amp_rewrite.rewriting.report import SummaryLine
from amp_rewrite.running.blame import NodeError
from amp_rewrite.running.verdict import Output

_FOLDER = Path(__file__).parent / "html"
_VENDORED = ("d3", "dagre")
_OURS = (
    *("dom", "layout", "drawing", "view", "step", "magnitudes", "details"),
    *("search", "pictures", "export", "overview", "main"),
)
"""The scripts; each uses only those before it."""


def render(report: HtmlReport) -> bytes:
    """Return the whole file in UTF-8; equal reports give equal bytes."""
    style, script = asset("page.css"), "\n".join(asset(f"{name}.js") for name in _OURS)
    libraries = "\n".join(asset(f"vendor/{name}.min.js") for name in _VENDORED)
    vendored = re.sub(r"^//# sourceMappingURL=.*$", "", libraries, flags=re.MULTILINE)
    parts = {
        "policy": policy(style, vendored, script),
        "style": style,
        "data": embedded(plain(report)),
        "licences": "\n".join(asset(f"vendor/{name}.LICENSE") for name in _VENDORED),
        "vendored": vendored,
        "script": script,
    }
    # the substituted text is not scanned for placeholders again
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], asset("page.html")).encode()


def write(report: HtmlReport, path: Path) -> None:
    """Write the whole file; raise OutputError."""
    staging.write(render(report), path)


def embedded(data: Any) -> str:
    """Return JSON that is safe inside a script element: ASCII without `<`, `>` and `&`."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_UNSAFE = re.compile("[<>&]")


def policy(style: str, *scripts: str) -> str:
    """Return the content security policy of a page with this style and these scripts, and nothing to load."""
    allowed = " ".join(map(_hash, scripts)) or "'none'"
    nothing = "default-src 'none'; base-uri 'none'; form-action 'none'"
    return f"{nothing}; script-src {allowed}; style-src {_hash(style)}"


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


@functools.cache
def asset(name: str) -> str:
    """Return a file of the page, such as the style sheet `page.css`."""
    return (_FOLDER / name).read_text(encoding="utf-8")


# The content of a report as plain data for the page's scripts.


def plain(report: HtmlReport) -> dict[str, Any]:
    """Return the whole report as plain data."""
    view, step = report.decided, report.step
    return {
        "title": report.title,
        "half": view.half.name,
        "limits": [math.log2(limit) for limit in (view.half.smallest, view.half.largest)],
        "summary": _lines(report.summary_lines()),
        "coverage": {**report.coverage.summary(), "assumptions": list(report.coverage.assumptions)},
        "card": records.plain(view.card),
        "verification": _plain_verdict(report.evidence),
        **_plain_graph(view.graph),
        **_plain_decisions(view),
        "errors": [_plain_error(box, error) for box, error in report.errors],
        "suspect": report.suspect,
        "magnitudes": [pair and [float(f"{each:.2e}") for each in pair] for pair in report.magnitudes],
        "normal": math.log2(view.half.smallest * view.half.integers / 2),
        "histograms": {title: sorted(counts.items()) for title, counts in report.histograms.items()},
        "step": step and {"lines": _lines(step.lines), "parts": [part and part.value for part in step.parts]},
    }


def _lines(lines: Iterable[SummaryLine]) -> list[list[str]]:
    return [[line.name, line.text] for line in lines]


def _plain_decisions(view: DecisionView) -> dict[str, Any]:
    """Return the causes of float32, with their boxes; and for each unit its reason, the unit that caused it,
    its box, None where a rewritten model lacks it, and the knowledge of its values, if it is half.
    """
    decided = view.decisions
    box_of = {unit: number for number, box in enumerate(view.graph.boxes) for unit in box.units}
    causes = [
        records.plain(sentences.of_cause(cause)) | {"boxes": [box_of[u] for u in cause.held if u in box_of]}
        for cause in view.causes
    ]
    ranges = {
        unit: {"knowledge": known.knowledge.value, "text": sentences.of_unit(known)}
        for unit, known in view.ranges.items()
    }
    reasons = [
        {
            **records.plain(sentences.first_step(decided, unit)),
            "cause": decided.cause(unit),
            "box": box_of.get(unit),
            "range": ranges.get(unit),
        }
        for unit in range(len(decided.all))
    ]
    return {"causes": causes, "reasons": reasons}


def _plain_graph(graph: DrawnGraph) -> dict[str, Any]:
    return {
        "constants": graph.constants,
        "frames": records.plain(graph.frames),
        "boxes": records.plain(graph.boxes),
        "wires": [[wire.source, wire.target] for wire in graph.wires],
        "layers": graph.layers,
    }


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
    """Return the cells of an output; `ok` is None if nothing is compared, or float32 leaves it undecided."""
    is_judged = output.broken or (output.is_compared and not output.is_undecided)
    return {"cells": verdict_text.cells(output), "ok": not output.broken if is_judged else None}


def _plain_error(box: int, error: NodeError) -> dict[str, Any]:
    """Return errors as text, and `size` as a number for the colour scale: JSON has no infinity."""
    return {
        "box": box,
        "value": error.value,
        "error": f"{error.error:.1e}",
        "added": f"{error.added:.1e}",
        "effect": None if error.effect is None else f"{error.effect:.1e}",
        "size": min(error.error, _WORST),
        "non_finite": error.non_finite,
        "lost": not math.isfinite(error.error),
        "reads": None if error.low is None or error.high is None else f"{error.low:.3g} to {error.high:.3g}",
    }


_WORST = 1e30
