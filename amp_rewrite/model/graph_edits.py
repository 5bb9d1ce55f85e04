"""Graph edits shared by several passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.model.constants import StoredTensor


def graph_of(item: ir.Node | ir.Value) -> ir.Graph:
    """Return the graph that contains a node, or defines a value by a node, input or initializer."""
    graph = item.graph
    assert isinstance(graph, ir.Graph), "all that a model holds is in a graph"
    return graph


def replace_inputs(node: ir.Node, values: Mapping[int, ir.Value | None]) -> None:
    """Replace the inputs of a node at these ports.

    onnx-ir copies all inputs of a node for each replacement: quadratic for a Concat of thousands.
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
    """Replace each key by its value in all consumers."""
    ports: dict[ir.Node, dict[int, ir.Value | None]] = {}
    for value, replacement in replacements.items():
        for node, port in value.uses():
            ports.setdefault(node, {})[port] = replacement
    for node, values in ports.items():
        replace_inputs(node, values)


def remove(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes whose outputs have no other consumers, from any graphs."""
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
    """Replace a node by `parts`, and its (first) output by `value`."""
    ir.convenience.replace_nodes_and_values(graph_of(node), node, [node], parts, node.outputs[:1], [value])


def replace_by(node: ir.Node, operator: str, inputs: Sequence[ir.Value | None], before: ir.Node) -> None:
    """Replace a node by one of an ONNX operator, preceded by `before`.

    The names of the node and its output stay, as do the type and shape of the output.
    """
    replacement, old = ir.Node("", operator, inputs, name=node.name), node.outputs[0]
    value = replacement.outputs[0]
    value.name, value.type, value.shape = old.name, old.type, old.shape
    replace(node, [before, replacement], value)


def register(value: ir.Value, graph: ir.Graph, *, as_input: bool) -> None:
    """Register a constant as an initializer, and also as an input of the graph if `as_input`."""
    graph.register_initializer(value)
    if as_input:
        graph.inputs.append(value)


def add_stored(graph: ir.Graph, name: str, data: ir.TensorProtocol, *, as_input: bool) -> ir.Value:
    """Return a new initializer of a graph, which is an input of it as well if `as_input`."""
    kind, shape = ir.TensorType(data.dtype), ir.Shape(data.shape.numpy())
    value = ir.Value(name=name, type=kind, shape=shape, const_value=data)
    register(value, graph, as_input=as_input)
    return value


def unregister(value: ir.Value, graph: ir.Graph) -> None:
    """Remove a constant that `register` added."""
    del graph.initializers[value.name or ""]
    if value in graph.inputs:
        graph.inputs.remove(value)


def store(constant: StoredTensor, tensor: ir.TensorProtocol) -> None:
    """Replace the tensor of a constant."""
    if constant.node is None:
        constant.value.const_value = tensor
    else:
        constant.node.attributes.clear()
        constant.node.attributes["value"] = ir.AttrTensor("value", tensor)
