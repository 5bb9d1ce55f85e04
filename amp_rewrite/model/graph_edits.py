"""Edits of a graph that several passes share: nodes and their inputs, unique names, and stored constants."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.model import constants, traversal
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW, StoredTensor
from amp_rewrite.onnx_types.element_types import tensor as tensor_type


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
        graph.remove(together)  # `safe` would replace the inputs one by one


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


# Unique names for values and nodes.


class UniqueNames:
    """A generator of names that no value or node of these graphs has, each of them once."""

    def __init__(self, graphs: Iterable[ir.Graph]) -> None:
        self._values: set[str | None] = set()
        self._nodes: set[str | None] = set()
        self._value_numbering, self._node_numbering = Numbering(), Numbering()
        for graph in graphs:
            nodes = tuple(graph)
            self._nodes.update([node.name for node in nodes])
            # inputs too: a sparse initializer has uses, but no definition in onnx-ir
            ports = itertools.chain.from_iterable((*node.inputs, *node.outputs) for node in nodes)
            values = {*graph.inputs, *graph.initializers.values(), *ports}
            self._values.update([value.name for value in values if value is not None])

    def of_value(self, value: ir.Value, suffix: str) -> str:
        """Return `<value>__<suffix>`, with a number if that is in use."""
        return self._value_numbering.free(f"{value.name or 'value'}__{suffix}", self._values)

    def new_value(self, name: str) -> str:
        """Return the name itself, with a number if another value has it."""
        return self._value_numbering.free(name, self._values)

    def of_node(self, name: str) -> str:
        """Return the name itself, with a number if another node has it."""
        return self._node_numbering.free(name, self._nodes)

    def constant(self, like: ir.Value, suffix: str, tensor: ir.TensorProtocol) -> ir.Node:
        """Return a Constant outside any graph, whose value is named after another."""
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
        node.outputs[0].name = self.of_value(like, suffix)
        node.name = self.of_node(node.outputs[0].name)
        return node

    def rename_shadowing(self, graph: ir.Graph, outer: frozenset[str | None] = frozenset()) -> None:
        """Rename the initializers of bodies that have the name of a value of an enclosing graph.

        ONNX allows this, but onnx's shape inference confuses the types of the two.
        """
        for value in [v for v in graph.initializers.values() if v.name in outer]:
            value.name = self.of_value(value, "inner")
        bodies = list(traversal.bodies(graph))
        visible = outer.union(_defined(graph)) if bodies else outer
        for body in bodies:
            self.rename_shadowing(body, visible)


def rename_twins(model: ir.Model) -> tuple[str, ...]:
    """Rename nodes that have the name of an earlier one in their graph; return a warning, if there were any.

    onnxruntime rejects a model with two nodes of one name.
    """
    twins: list[ir.Node] = []
    for nodes in traversal.nodes(model.graph).values():
        names: set[str] = set()
        for node in nodes:
            if node.name and node.name in names:
                twins.append(node)
            names.add(node.name or "")
    if not twins:
        return ()
    unique = UniqueNames(traversal.graphs(model.graph))
    first = twins[0].name
    for node in twins:
        node.name = unique.of_node(node.name or "")
    count = "1 node has" if len(twins) == 1 else f"{len(twins):,} nodes have"
    which = "it" if len(twins) == 1 else "the first"
    message = f"{count} the name of another ('{first}'), which onnxruntime refuses"
    return (f"{message}; the result calls {which} '{twins[0].name}'",)


def _defined(graph: ir.Graph) -> Iterator[str | None]:
    yield from (value.name for value in graph.inputs)
    yield from graph.initializers
    yield from (value.name for node in graph for value in node.outputs)


class Numbering:
    """A numbering that makes names unique; for the same name, the search continues where it stopped."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def free(self, name: str, used_names: set[str] | set[str | None]) -> str:
        """Return the name itself, or `<name>_2` and so on if that is in use; add the result to `used_names`.

        A name that was in `used_names` once must stay there.
        """
        candidate, number = name, self._last.get(name, 1)
        while candidate in used_names:
            number += 1
            candidate = f"{name}_{number}"
        self._last[name] = number
        used_names.add(candidate)
        return candidate


# Constants that no caller can override: reading, replacing in place, adding and removing them.

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class StoredValues:
    """The constants of a model that no caller can override, and edits of them."""

    def __init__(self, model: ir.Model) -> None:
        self._root = model.graph
        self._lists_inputs = model.ir_version < CONSTANT_INPUTS_BELOW

    @functools.cached_property
    def _names(self) -> UniqueNames:
        return UniqueNames(traversal.graphs(self._root))

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of a constant; None for other values, and for overridable ones."""
        if value is None or (value.is_graph_input() and not self._lists_inputs):
            return None
        return constants.stored_as(value)

    def replace(self, reader: ir.Node, port: int, tensor: ir.TensorProtocol) -> None:
        """Replace the constant at one input of a node.

        A constant with other consumers stays, and the node gets a new one.
        """
        value = reader.inputs[port]
        assert value is not None, "what is replaced is there"
        if len(value.uses()) > 1 or value.is_graph_output() or value.producer() is not None:
            reader.replace_input_with(port, self.add(value, "folded", tensor, reader))
            self.forget(value)
        else:
            value.const_value = tensor

    def add(self, like: ir.Value, suffix: str, tensor: ir.TensorProtocol, reader: ir.Node) -> ir.Value:
        """Add a constant in the graph of its consumer, named after another value."""
        value = ir.Value(name=self._names.of_value(like, suffix), const_value=tensor)
        self._register(value, tensor, graph_of(reader))
        return value

    def _register(self, value: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> None:
        tensor.name = value.name
        value.type, value.shape = tensor_type(tensor.dtype), ir.Shape(tensor.shape.numpy())
        register(value, graph, as_input=self._lists_inputs and graph is self._root)

    def put(self, tensors: Mapping[ir.Value, ir.TensorProtocol]) -> None:
        """Replace computed values by constants of the same names."""
        replacements = {
            value: ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=tensor)
            for value, tensor in tensors.items()
        }
        replace_uses(replacements)
        for value, replacement in replacements.items():
            self._register(replacement, tensors[value], graph_of(value))

    def forget(self, value: ir.Value | None) -> None:
        """Remove a constant without consumers."""
        if value is None or value.uses() or value.is_graph_output():
            return
        node, graph = value.producer(), value.graph
        if node is not None and isinstance(graph, ir.Graph):
            graph.remove(node, safe=True)
        elif isinstance(graph, ir.Graph) and value.is_initializer():
            if value.is_graph_input():
                graph.inputs.remove(value)
            graph.initializers.pop(value.name or "")
