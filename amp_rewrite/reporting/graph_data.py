"""The graph of a model as plain data: its frames, nodes and values, and the Casts that a plan adds.

The scripts of the page make boxes and wires of it (`html/graph.js`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.units import Use, value_of
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model import constants
from amp_rewrite.model.constants import StoredTensor
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Storage


def of(
    root: ir.Graph, flop_count: FlopCount, decisions: Decisions, analysis: Analysis | None
) -> dict[str, Any]:
    """Return the graph of a model: of an analysis, with what its plan will change; of a rewritten model
    without one, with the Casts that it has as nodes.
    """
    return _Recorder(root, flop_count, decisions, analysis).data()


class _Recorder:
    """The tables of a graph; nodes and values refer to each other by their positions.

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
