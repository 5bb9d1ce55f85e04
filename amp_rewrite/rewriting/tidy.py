"""Removal of Casts that do nothing or cancel each other, and of Casts that lose their uses by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from amp_rewrite.model import graph_edits
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types.element_types import Types


def run(root: ir.Graph, nodes: GraphNodes, types: Types) -> int:
    """Remove the Casts of a model that a rewrite made redundant; return the number of removed Casts.

    `nodes` are those of its graphs before the rewrite: redundant are Casts of theirs, or Casts added next to
    one. No value changes: removed are Casts to the type of their input, and Casts to float32 and back
    to the same half type. A Cast from float32 to half and back stays, because it rounds.
    """
    if not any(node.op_type == "Cast" for graph_nodes in nodes.values() for node in graph_nodes):
        return 0
    replacements: dict[ir.Value, ir.Value] = {}
    idle: list[ir.Node] = []
    for node in _casts(nodes):
        source, output = _source(node, types, replacements), node.outputs[0]
        if source is None or (output.is_graph_output() and not _may_be_output(source, output.graph, root)):
            continue
        idle.append(node)
        replacements[output] = source
        if output.is_graph_output():
            output.replace_all_uses_with(source, replace_graph_outputs=True)
    graph_edits.replace_uses({output: _followed(output, replacements) for output in replacements})
    removed = [*idle, *_idle_producers(idle)]
    graph_edits.remove(removed)
    return len(removed)


def _followed(value: ir.Value, replacements: Mapping[ir.Value, ir.Value]) -> ir.Value:
    """Return the value that finally replaces this one."""
    while value in replacements:
        value = replacements[value]
    return value


def _idle_producers(idle: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the Casts whose only consumers are these idle ones, and detach the latter."""
    producers: list[ir.Node] = []
    for node in idle:
        before = node.inputs[0]
        node.replace_input_with(0, None)
        producer = None if before is None or _is_used(before) else before.producer()
        if producer is not None and producer.op_type == "Cast":
            producers.append(producer)
    return producers


def _casts(graphs: Iterable[ir.Graph]) -> list[ir.Node]:
    casts = [node for graph in graphs for node in graph if node.op_type == "Cast"]
    return [node for node in casts if node.domain == "" and node.inputs[0] is not None]


def _source(node: ir.Node, types: Types, replacements: Mapping[ir.Value, ir.Value]) -> ir.Value | None:
    """Return the value that equals a Cast's output, given the replacements; None if the Cast is needed."""
    value_in, target = node.inputs[0], _element(node.outputs[0], types)
    if value_in is None or target not in HALF_TYPES:
        return None
    value = _followed(value_in, replacements)
    if _element(value, types) == target:
        return value
    producer = value.producer()
    if producer is None or producer.op_type != "Cast" or _element(value, types) != ir.DataType.FLOAT:
        return None
    origin = producer.inputs[0]
    if origin is None or _element(origin, types) != target:
        return None
    return _followed(origin, replacements)


def _may_be_output(value: ir.Value, graph: object, root: ir.Graph) -> bool:
    """Return whether `value` can replace an output of `graph`.

    The outputs of the model keep their names, and those of a body are distinct and produced inside it.
    """
    is_produced_inside = value.graph is graph and value.producer() is not None
    return is_produced_inside and graph is not root and not value.is_graph_output()


def _element(value: ir.Value, types: Types) -> ir.DataType | None:
    kind = types.get(value)
    return kind.dtype if isinstance(kind, ir.TensorType) else None


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
