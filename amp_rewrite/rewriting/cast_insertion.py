"""Casts of tensors, sequences and optionals: their nodes, insertion into a graph, and redirection of uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.model.graph_edits import UniqueNames, graph_of, replace_inputs
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import tensor

Redirection = tuple[Iterable[Use], ir.Value]
"""Uses, and the value that they are to read."""


class Placer:
    """Inserts nodes after the producers of values; at the start of a graph in the order of the calls."""

    def __init__(self) -> None:
        self._first: dict[ir.Graph, ir.Node | None] = {}

    def behind(self, nodes: Sequence[ir.Node], value: ir.Value) -> None:
        """Insert nodes directly after the producer of `value`; for inputs and initializers, at the start."""
        producer, graph = value.producer(), graph_of(value)
        if producer is not None:
            graph.insert_after(producer, nodes)
            return
        if graph not in self._first:
            self._first[graph] = next(iter(graph), None)
        first = self._first[graph]
        if first is None:
            graph.extend(nodes)
        else:
            graph.insert_before(first, nodes)


def cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    """Return a Cast node outside any graph; its output has a type and a shape, but no name."""
    output = ir.Value(type=tensor(dtype), shape=value.shape)
    return ir.Node("", "Cast", (value,), (ir.AttrInt64("to", int(dtype)),), outputs=(output,), name=name)


def redirect(redirections: Iterable[Redirection]) -> None:
    """Redirect uses to other values, all those of a node at once."""
    ports: dict[ir.Node, dict[int, ir.Value | None]] = {}
    for uses, value in redirections:
        for holder, port in uses:
            if type(holder) is ir.Node:  # as in units.value_of
                ports.setdefault(holder, {})[port] = value
            elif isinstance(holder, ir.Graph):
                holder.outputs[port] = value
    for node, values in ports.items():
        replace_inputs(node, values)


# Casts of sequences, element by element, and of optionals, if they are not empty.

MIN_OPSET: dict[type[ir.TypeProtocol], int] = {ir.SequenceType: 13, ir.OptionalType: 16}
"""The opsets in which a Loop can carry sequences and an If can output optionals (ONNX 1.8 and 1.11)."""


def cast_nodes(
    value: ir.Value, value_type: ir.TypeProtocol, dtype: ir.DataType, names: UniqueNames
) -> list[ir.Node]:
    """Return nodes that cast `value`, of type `value_type`, to `dtype`, in order; the last has the result.

    They are not in a graph yet. Their outputs have types and unique names.
    """
    builder = _NodeBuilder(value, names)
    _cast(builder, value, value_type, dtype)
    return builder.nodes


class _NodeBuilder:
    """Creates nodes in order, whose names have a common prefix."""

    def __init__(self, source: ir.Value, names: UniqueNames) -> None:
        self._source = source
        self._names = names
        self.nodes: list[ir.Node] = []

    def add(
        self, operator: str, inputs: Sequence[ir.Value], output: ir.TypeProtocol, *attributes: ir.Attr
    ) -> ir.Value:
        """Add a node and return its only output, of type `output`."""
        node = ir.Node("", operator, inputs, attributes)
        self.nodes.append(node)
        value = self._named(node.outputs[0], operator, output)
        node.name = self._names.of_node(value.name or "")
        return value

    def input(self, suffix: str, value_type: ir.TypeProtocol, shape: ir.Shape | None = None) -> ir.Value:
        """Return an input of a body."""
        return self._named(ir.Value(shape=shape), suffix, value_type)

    def body(self) -> _NodeBuilder:
        """Return a builder for the nodes of a body, with the same prefix."""
        return _NodeBuilder(self._source, self._names)

    def graph(self, name: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Attr:
        """Return an attribute whose graph consists of these nodes."""
        return ir.AttrGraph(name, ir.Graph(inputs, outputs, nodes=self.nodes, name=name))

    def _named(self, value: ir.Value, suffix: str, value_type: ir.TypeProtocol) -> ir.Value:
        value.name = self._names.of_value(self._source, suffix)
        value.type = value_type
        return value


def _cast(at: _NodeBuilder, value: ir.Value, value_type: ir.TypeProtocol, dtype: ir.DataType) -> ir.Value:
    if isinstance(value_type, ir.SequenceType):
        return _each(at, value, value_type, dtype)
    if isinstance(value_type, ir.OptionalType):
        return _if_present(at, value, value_type, dtype)
    return at.add("Cast", [value], tensor(dtype), ir.AttrInt64("to", int(dtype)))


def _each(at: _NodeBuilder, value: ir.Value, value_type: ir.SequenceType, dtype: ir.DataType) -> ir.Value:
    """Return a Loop that casts each element and appends it to a new sequence."""
    sequence_type, within = element_types.with_element(value_type, dtype), at.body()
    length = at.add("SequenceLength", [value], _INT64)
    always = at.add("Constant", [], _BOOL, ir.AttrTensor("value", ir.tensor(True)))
    empty = at.add("SequenceEmpty", [], sequence_type, ir.AttrInt64("dtype", int(dtype)))
    index, go = within.input("index", _INT64, ir.Shape(())), within.input("go", _BOOL, ir.Shape(()))
    before = within.input("before", sequence_type)
    goes_on = within.add("Identity", [go], _BOOL)
    element = within.add("SequenceAt", [value, index], value_type.elem_type)
    cast = _cast(within, element, value_type.elem_type, dtype)
    after = within.add("SequenceInsert", [before, cast], sequence_type)
    body = within.graph("body", [index, go, before], [goes_on, after])
    return at.add("Loop", [length, always, empty], sequence_type, body)


def _if_present(
    at: _NodeBuilder, value: ir.Value, value_type: ir.OptionalType, dtype: ir.DataType
) -> ir.Value:
    """Return an If that casts the element, or outputs an empty optional of the new type."""
    optional_type, full, empty = element_types.with_element(value_type, dtype), at.body(), at.body()
    element = full.add("OptionalGetElement", [value], value_type.elem_type)
    some = full.add("Optional", [_cast(full, element, value_type.elem_type, dtype)], optional_type)
    element_type = ir.TypeAndShape(element_types.with_element(value_type.elem_type, dtype), None)
    none = empty.add(
        "Optional", [], optional_type, ir.Attr("type", ir.AttributeType.TYPE_PROTO, element_type)
    )
    branches = (full.graph("then_branch", [], [some]), empty.graph("else_branch", [], [none]))
    return at.add("If", [at.add("OptionalHasElement", [value], _BOOL)], optional_type, *branches)


_INT64, _BOOL = tensor(ir.DataType.INT64), tensor(ir.DataType.BOOL)
