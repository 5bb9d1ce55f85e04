"""Edits of a graph that several steps make alike."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_rewrite.model.constants import StoredTensor


def graph_of(held: ir.Node | ir.Value) -> ir.Graph:
    """The graph of a node, or of a value: that of its producer, or of which it is an input or initializer."""
    graph = held.graph
    assert isinstance(graph, ir.Graph), "all that a model holds is in a graph"
    return graph


def replace(node: ir.Node, parts: Sequence[ir.Node], value: ir.Value) -> None:
    """Puts `parts` in the place of a node, and `value` in that of its (first) output."""
    ir.convenience.replace_nodes_and_values(graph_of(node), node, [node], parts, node.outputs[:1], [value])


def replace_by(node: ir.Node, operator: str, inputs: Sequence[ir.Value | None], before: ir.Node) -> None:
    """Puts a node of an operator of ONNX's in the place of a node, `before` in front of it; the names of the
    node and of its output, and what is known of that, stay.
    """
    made, old = ir.Node("", operator, inputs, name=node.name), node.outputs[0]
    value = made.outputs[0]
    value.name, value.type, value.shape = old.name, old.type, old.shape
    replace(node, [before, made], value)


def register(value: ir.Value, graph: ir.Graph, *, listed: bool) -> None:
    """Makes a value with a tensor an initializer; where such are `listed`, an input of the graph as well."""
    graph.register_initializer(value)
    if listed:
        graph.inputs.append(value)


def store(stored: StoredTensor, tensor: ir.TensorProtocol) -> None:
    """Stores another tensor in the place of one."""
    if stored.node is None:
        stored.value.const_value = tensor
    else:
        stored.node.attributes.clear()
        stored.node.attributes["value"] = ir.AttrTensor("value", tensor)
