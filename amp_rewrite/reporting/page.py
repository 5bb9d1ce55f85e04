"""The HTML page: its content as plain data, and the rendering of that as one self-contained file.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from amp_rewrite import version
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.bounds.unit_ranges import UnitRange
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.model import constants
from amp_rewrite.numerics.half import Half
from amp_rewrite.reporting import graph_data, summary, verdict_text
from amp_rewrite.rewriting import records
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.report import Report, StepPart, SummaryLine
from amp_rewrite.running.blame import NodeError
from amp_rewrite.running.verdict import Output, Verdict

Page = Mapping[str, Any]
"""The content of a page as plain data: what its scripts read."""


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """Results of runs: the verdict, or in `unverified` the reason for its absence; the largest observed
    `magnitudes` of values of the original, by name; and notes on the outcome.
    """

    verdict: Verdict | None = None
    unverified: str = ""
    magnitudes: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[SummaryLine, ...] = ()


def magnitudes(observed: Seen | None, exponents: Mapping[str, int] | None = None) -> dict[str, float]:
    """Return the largest finite magnitudes; `exponents` are those of powers of two to undo."""
    finite = {name: each.most for name, each in (observed or {}).items() if not each.is_empty}
    return {name: math.ldexp(most, (exponents or {}).get(name, 0)) for name, most in finite.items()}


def decided(
    model: ir.Model,
    half: Half,
    decisions: Decisions,
    causes: Iterable[RootCause],
    flop_count: FlopCount,
    analysis: Analysis | None,
    options: str,
) -> Page:
    """Return what is decided about a model, before its first edit; `analysis` is None for a model that was
    rewritten earlier, and `options` are the command's as text.
    """
    ranges = {} if analysis is None else analysis.ranges().units
    return {
        "half": half.name,
        "limits": [math.log2(limit) for limit in (half.smallest, half.largest)],
        "normal": math.log2(half.smallest * half.integers / 2),
        "facts": list(_facts(model, options)),
        "causes": [
            {**records.plain(sentences.of_cause(cause)), "affected": cause.affected} for cause in causes
        ],
        "reasons": list(_reasons(decisions, ranges)),
        "stored": sorted(graph_data.binades(constants.find(model).values()).items()),
        **graph_data.of(model.graph, flop_count, decisions, analysis),
    }


def _facts(model: ir.Model, options: str) -> Iterator[tuple[str, str]]:
    producer = " ".join(filter(None, (model.producer_name, model.producer_version)))
    yield "producer", producer or "(not named)"
    opsets = (f"{domain or 'ai.onnx'} {number}" for domain, number in model.graph.opset_imports.items())
    yield "opset", ", ".join(opsets)
    yield "IR version", str(model.ir_version)
    yield "amp-rewrite", version.installed()
    yield "options", options or "(the defaults)"


def _reasons(decisions: Decisions, ranges: Mapping[int, UnitRange]) -> Iterator[dict[str, Any]]:
    """Yield for each unit its reason, the unit that caused it, and for half units what is known of values."""
    for unit in range(len(decisions.all)):
        known = ranges.get(unit)
        yield {
            **records.plain(sentences.first_step(decisions, unit)),
            "cause": decisions.cause(unit),
            "range": known and {"knowledge": known.knowledge.value, "text": sentences.of_unit(known)},
        }


def of(title: str, report: Report | None, decisions: Page, evidence: RunEvidence, coverage: Coverage) -> Page:
    """Return a page; `report` is None for a model that was rewritten earlier."""
    verdict = evidence.verdict
    lines = summary.lines(report) if report else summary.coverage_lines(coverage)
    blame = verdict.blame if verdict is not None else None
    worst = blame.worst if blame and verdict is not None and not verdict.ok else None
    compared = {error.value: error.largest for error in blame.nodes} if blame else {}
    return {
        **decisions,
        "title": title,
        "summary": _plain_lines((*lines, *evidence.notes)),
        "coverage": {**coverage.summary(), "assumptions": list(coverage.assumptions)},
        "verification": _plain_verdict(verdict, evidence.unverified),
        "errors": [_plain_error(error) for error in blame.nodes] if blame else [],
        "worst": worst and worst.value,
        "magnitudes": {**compared, **evidence.magnitudes},
        "exponents": sentences.exponents(report and report.rescaled),
        "step": None,
    }


def with_step(page: Page, lines: Iterable[SummaryLine], parts: Mapping[str, StepPart]) -> Page:
    """Return the page with these lines on a train step, and its parts by output names of nodes."""
    return {**page, "step": {"lines": _plain_lines(lines), "parts": records.plain(dict(parts))}}


def _plain_lines(lines: Iterable[SummaryLine]) -> list[list[str]]:
    return [[line.name, line.text] for line in lines]


def _plain_verdict(verdict: Verdict | None, unverified: str) -> dict[str, Any]:
    if verdict is None:
        how = unverified or "Nothing was run."
        return {"ok": None, "said": "not compared with the original", "how": how, "rows": []}
    return {
        "ok": verdict.ok,
        "said": ": ".join(filter(None, (verdict_text.conclusion(verdict), verdict_text.largest(verdict)))),
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


def _plain_error(error: NodeError) -> dict[str, Any]:
    """Return errors as text, and `size` as a number for the colour scale: JSON has no infinity."""
    return {
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


# One file, in which nothing but our scripts runs.

_FOLDER = Path(__file__).parent / "html"
_VENDORED = ("d3", "dagre")
_OURS = (
    *("dom", "graph", "layout", "drawing", "view", "step", "magnitudes", "details"),
    *("search", "pictures", "export", "overview", "main"),
)
"""The scripts; each uses only those before it."""


def render(page: Page) -> bytes:
    """Return the whole file in UTF-8; equal pages give equal bytes."""
    style, script = asset("page.css"), "\n".join(asset(f"{name}.js") for name in _OURS)
    libraries = "\n".join(asset(f"vendor/{name}.min.js") for name in _VENDORED)
    vendored = re.sub(r"^//# sourceMappingURL=.*$", "", libraries, flags=re.MULTILINE)
    parts = {
        "policy": policy(style, vendored, script),
        "style": style,
        "data": embedded(page),
        "licences": "\n".join(asset(f"vendor/{name}.LICENSE") for name in _VENDORED),
        "vendored": vendored,
        "script": script,
    }
    # the substituted text is not scanned for placeholders again
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], asset("page.html")).encode()


def write(page: Page, path: Path) -> None:
    """Write the whole file; raise OutputError."""
    staging.write(render(page), path)


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
