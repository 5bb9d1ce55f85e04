"""Cleans up after a rewrite: Casts that do nothing or cancel each other, and what is unused then."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from amp_rewrite.model.traversal import GraphNodes, graphs
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types.element_types import Types


def run(root: ir.Graph, nodes: GraphNodes, types: Types) -> int:
    """Removes the Casts of a model that a rewrite made redundant; returns how many it removed.

    `nodes` are those of its graphs before the rewrite: redundant are Casts of theirs, or Casts added next to
    one. Every value stays the same: a Cast to the type that its input has goes, and one to float32 and back
    to the same half type. A Cast from float32 to half and back stays, because it rounds.
    """
    if not any(node.op_type == "Cast" for held in nodes.values() for node in held):
        return 0
    removed = 0
    for node in _casts(nodes):
        source = _source(node, types)
        if source is None:
            continue
        made = node.outputs[0]
        if not made.is_graph_output() or _may_leave(source, made.graph, root):
            made.replace_all_uses_with(source, replace_graph_outputs=True)
        before = node.inputs[0]
        if not _is_read(made):
            _remove(node)
            removed += 1
        removed += _remove_if_unread(before)
    return removed


def bypass(model: ir.Model, types: Types) -> None:
    """Takes out Casts from float32 to float32, which exporters leave behind and which say nothing.

    They would stand between nodes that belong together. One that makes an output of the model, or of a
    body, stays.
    """
    float32 = ir.DataType.FLOAT
    for node in _casts(graphs(model.graph)):
        value, made = node.inputs[0], node.outputs[0]
        if value is None or made.is_graph_output():
            continue
        if _element(value, types) == float32 == _element(made, types):
            made.replace_all_uses_with(value)
            _remove(node)


def _casts(held: Iterable[ir.Graph]) -> list[ir.Node]:
    casts = [node for graph in held for node in graph if node.op_type == "Cast"]
    return [node for node in casts if node.domain == "" and node.inputs[0] is not None]


def _source(node: ir.Node, types: Types) -> ir.Value | None:
    """The value that holds what a Cast gives already; None when the Cast is needed."""
    value = node.inputs[0]
    target = _element(node.outputs[0], types)
    if value is None or target not in HALF_TYPES:
        return None
    if _element(value, types) == target:
        return value
    maker = value.producer()
    if maker is None or maker.op_type != "Cast" or _element(value, types) != ir.DataType.FLOAT:
        return None
    origin = maker.inputs[0]
    return origin if origin is not None and _element(origin, types) == target else None


def _may_leave(value: ir.Value, graph: object, root: ir.Graph) -> bool:
    """Whether `value` can be an output of `graph` in another's place.

    The outputs of the model keep their names, and a body gives only what is made inside, and that once.
    """
    made_inside = value.graph is graph and value.producer() is not None
    return made_inside and graph is not root and not value.is_graph_output()


def _element(value: ir.Value, types: Types) -> ir.DataType | None:
    kind = types.get(value)
    return kind.dtype if isinstance(kind, ir.TensorType) else None


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _remove(node: ir.Node) -> None:
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def _remove_if_unread(value: ir.Value | None) -> int:
    """Removes the Cast that produces a value without uses."""
    maker = value.producer() if value is not None else None
    if value is None or maker is None or maker.op_type != "Cast" or _is_read(value):
        return 0
    _remove(maker)
    return 1
