"""Edits of a graph that several steps make alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.model.constants import StoredTensor


def graph_of(held: ir.Node | ir.Value) -> ir.Graph:
    """The graph of a node, or of a value: that of its producer, or of which it is an input or initializer."""
    graph = held.graph
    assert isinstance(graph, ir.Graph), "all that a model holds is in a graph"
    return graph


def replace_inputs(node: ir.Node, values: Mapping[int, ir.Value | None]) -> None:
    """Has a node read other values at these ports.

    onnx-ir copies all inputs of a node for each that it replaces: quadratic for a Concat of thousands.
    """
    if len(values) == 1 or node.device_configurations:
        for port, value in values.items():
            node.replace_input_with(port, value)
        return
    inputs = list(node.inputs)
    for port, value in values.items():
        if (old := inputs[port]) is not None:
            old._remove_usage(node, port)  # pyright: ignore[reportPrivateUsage] - as replace_input_with
        if value is not None:
            value._add_usage(node, port)  # pyright: ignore[reportPrivateUsage]
        inputs[port] = value
    node._inputs = tuple(inputs)  # pyright: ignore[reportPrivateUsage]


def replace_uses(replacements: Mapping[ir.Value, ir.Value]) -> None:
    """Has the nodes that read a key of these read its value."""
    ports: dict[ir.Node, dict[int, ir.Value | None]] = {}
    for value, replacement in replacements.items():
        for node, port in value.uses():
            ports.setdefault(node, {})[port] = replacement
    for node, values in ports.items():
        replace_inputs(node, values)


def remove(nodes: Iterable[ir.Node]) -> None:
    """Removes nodes of which no output is read by others, from whatever graphs they are in."""
    removed: dict[ir.Graph, list[ir.Node]] = {}
    for node in nodes:
        removed.setdefault(graph_of(node), []).append(node)
        replace_inputs(node, dict.fromkeys(range(len(node.inputs))))
    for graph, together in removed.items():
        counts = [len(node.inputs) for node in together]
        for node in together:
            node._inputs = ()  # pyright: ignore[reportPrivateUsage] - `remove` replaces them one by one
        graph.remove(together, safe=True)
        for node, count in zip(together, counts, strict=True):
            node.resize_inputs(count)


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
