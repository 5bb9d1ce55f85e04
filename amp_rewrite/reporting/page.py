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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite import version
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.units import Use, value_of
from amp_rewrite.bounds.unit_ranges import UnitRange
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.model import constants
from amp_rewrite.model.constants import StoredTensor
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.reporting import summary
from amp_rewrite.rewriting import records
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Storage
from amp_rewrite.rewriting.report import Report, StepPart, SummaryLine
from amp_rewrite.running import verdict_text
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
        "stored": sorted(binades(constants.find(model).values()).items()),
        **_Recorder(model.graph, flop_count, decisions, analysis).data(),
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


# The graph of a model as plain data: its frames, nodes and values, and the Casts that a plan adds. The
# scripts of the page make boxes and wires of it (`html/graph.js`).


class _Recorder:
    """The tables of a graph; nodes and values refer to each other by their positions. Of an analysis they
    have what its plan will change; of a rewritten model without one, the Casts that it has as nodes.

    `half` is said of values that become half, and of their uses by half units; Constants are no nodes.
    """

    def __init__(
        self, root: ir.Graph, flop_count: FlopCount, decisions: Decisions, analysis: Analysis | None
    ) -> None:
        self._types, self._flops = flop_count.types, flop_count.flops
        self._graphs = dict(_with_titles(root, ""))
        self._frame = {graph: number for number, graph in enumerate(self._graphs)}
        all_nodes = [node for graph in self._graphs for node in graph]
        self._node = {node: at for at, node in enumerate(n for n in all_nodes if not _is_constant(n))}
        self._constants = len(all_nodes) - len(self._node)
        self._values: dict[ir.Value, int] = {}
        self._units: dict[object, list[int]] = {}
        for unit, node in enumerate(decisions.nodes):
            self._units.setdefault(node, []).append(unit)
        self._casts = () if analysis is None else analysis.plan.casts
        self._cast = {use: number for number, cast in enumerate(self._casts) for use in cast.uses}
        self._added = {site.output for site in decisions.cast_sites if site.added and not self._casts}
        self._half = frozenset[ir.Value]()
        self._half_uses = frozenset[Use]()
        if analysis is not None:
            stored = (each.stored.value for each in analysis.plan.tensors if each.storage is Storage.HALF)
            self._half = frozenset((*analysis.plan.values, *stored))
            units = (unit for unit in analysis.graph.units if decisions.all[unit.index].is_half)
            self._half_uses = frozenset(use for unit in units for use in unit.uses)

    def data(self) -> dict[str, Any]:
        owners = {body: at for node, at in self._node.items() for body in control_flow.bodies(node)}
        return {
            "constants": self._constants,
            "frames": [
                {
                    "title": title,
                    "owner": owners.get(graph),
                    "inputs": [self._at(value) for value in graph.inputs if not value.is_initializer()],
                    "outputs": [self._use(Use(graph, port)) for port in range(len(graph.outputs))],
                }
                for graph, title in self._graphs.items()
            ],
            "nodes": [self._row(node) for node in self._node],
            "casts": [
                {
                    "frame": self._frame[graph_of(cast.value)],
                    "value": self._at(cast.value),
                    "to": element_type_name(cast.dtype),
                }
                for cast in self._casts
            ],
            "values": [self._description(value) for value in self._values],
        }

    def _row(self, node: ir.Node) -> dict[str, Any]:
        uses = (Use(node, port) for port, value in enumerate(node.inputs) if value is not None)
        return {
            "frame": self._frame[graph_of(node)],
            "operator": schema.written(node.domain, node.op_type),
            "name": pinned_as(node),
            "added": node.op_type == "Cast" and node.outputs[0].name in self._added,
            "units": self._units.get(node, []),
            "inputs": [self._use(use) for use in uses],
            "outputs": [self._at(value) for value in node.outputs],
            "bodies": [self._frame[body] for body in control_flow.bodies(node)],
            "flops": self._flops.get(node),
            "attributes": attribute_texts(node),
        }

    def _use(self, use: Use) -> dict[str, Any]:
        value, cast = value_of(use), self._cast.get(use)
        assert value is not None, "an omitted input has no use"
        is_half = use in self._half_uses
        if type(use.holder) is not ir.Node and not is_half:
            is_half = value in self._half if cast is None else self._casts[cast].dtype != ir.DataType.FLOAT
        return {"value": self._at(value), "half": is_half, "cast": cast}

    def _at(self, value: ir.Value) -> int:
        return self._values.setdefault(value, len(self._values))

    def _description(self, value: ir.Value) -> dict[str, Any]:
        is_stored = value.is_initializer() or _is_constant(value.producer())
        extent, counts = _stored_numbers(constants.stored_as(value) if is_stored else None)
        return {
            "name": value.name or "",
            "type": _type_text(value, self._types),
            "half": value in self._half,
            "stored": is_stored,
            "range": extent,
            "binades": counts,
        }


def _with_titles(graph: ir.Graph, title: str) -> Iterator[tuple[ir.Graph, str]]:
    """Yield a graph and its subgraphs, titled by attribute and node."""
    yield graph, title
    for node in graph:
        for number, body in enumerate(control_flow.bodies(node)):
            names = (a.name for a in node.attributes.values() if a.value is body)
            attribute = next(names, f"body {number + 1}")
            yield from _with_titles(body, f"{attribute} of {node.op_type} {pinned_as(node)}".strip())


def _is_constant(node: ir.Node | None) -> bool:
    """Return whether a node is a Constant, which the page does not draw: its consumers show it."""
    return node is not None and node.op_type == "Constant" and not node.domain


# Types, attributes and stored values as text.


def _type_text(value: ir.Value, types: Types) -> str:
    """Return the type and shape of a value as in `float32[batch, 3]`; unknown parts are omitted."""
    kind = types.get(value) or value.type
    if not isinstance(kind, ir.TensorType):
        return "" if kind is None else str(kind)
    sizes = (str(d) if isinstance(d, int) else d.value or "?" for d in value.shape or ())
    return element_type_name(kind.dtype) + ("" if value.shape is None else f"[{', '.join(sizes)}]")


_SHOWN = 8
"""The most numbers of a list that are shown."""
_LONGEST = 80
"""The most characters of a text that are shown."""
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def attribute_texts(node: ir.Node) -> list[tuple[str, str]]:
    """Return the attributes of a node that are no bodies: names and values."""
    scalars = (attribute for attribute in node.attributes.values() if attribute.type not in _GRAPHS)
    return [(attribute.name, _attribute_text(attribute)) for attribute in scalars]


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"of the function: {attribute.ref_attr_name}"
    values = attribute.value if isinstance(attribute.value, (list, tuple)) else (attribute.value,)
    text = ", ".join((*map(_element_text, values[:_SHOWN]), *(["..."] if len(values) > _SHOWN else [])))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _element_text(value: object) -> str:
    if isinstance(value, ir.TensorProtocol):
        return f"{element_type_name(value.dtype)}{list(value.shape.numpy())}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
_LARGEST = 1 << 26
"""The number of elements up to which a stored value's range is computed."""
_FEW = 16
"""The number of elements up to which a range suffices, without binades."""


def _stored_numbers(tensor: ir.TensorProtocol | None) -> tuple[str, list[tuple[int, int]]]:
    """Return the least and the greatest number of a stored float value, as text, and counts of its numbers by
    binade; both empty for other and for large values.

    A few numbers have no binades. Raises ModelError for a value that cannot be read.
    """
    if tensor is None or tensor.dtype not in _FLOATS or not 0 < tensor.size <= _LARGEST:
        return "", []
    least, most, counts = np.inf, -np.inf, Counter[int]()
    for block in constants.read(tensor):
        least, most = min(least, float(np.min(block))), max(most, float(np.max(block)))
        counts += _binades(block)
    text = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
    return text, sorted(counts.items()) if tensor.size > _FEW else []


Binades = Mapping[int, int]
"""Counts of numbers by binade, the interval between two powers of two: 1 and 1.5 are in binade 0. Zeros,
infinities and NaN do not count.
"""
_BIAS, _INFINITE = 127, 255
"""The exponents of 1, and of infinity and NaN, as float32 has them (IEEE 754)."""


def _binades(array: NDArray[np.float32]) -> Counter[int]:
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    counts = np.bincount((bits >> 23) & _INFINITE, minlength=_INFINITE + 1)
    return Counter({power - _BIAS: int(counts[power]) for power in range(1, _INFINITE) if counts[power]})


def binades(tensors: Iterable[StoredTensor]) -> Binades:
    """Return the binades of all stored numbers. Raises ModelError for a value that cannot be read."""
    counts: Counter[int] = Counter()
    for one in tensors:
        for block in constants.read(one.tensor):
            counts += _binades(block)
    return counts


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
