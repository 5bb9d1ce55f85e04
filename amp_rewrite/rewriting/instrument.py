"""Nodes behind values, in bodies as well: Casts, switches, and what else a copy of a model computes."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.units import Use
from amp_rewrite.errors import ModelError
from amp_rewrite.model import graph_edits
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW
from amp_rewrite.model.graph_edits import UniqueNames, graph_of, replace_inputs
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import tensor

Redirection = tuple[Iterable[Use], ir.Value]
"""Uses, and the value that they are to read."""


class Inserter:
    """Inserts nodes and stored values into a model; `names` are those that nothing in it has."""

    def __init__(self, model: ir.Model, names: UniqueNames | None = None) -> None:
        self.names = names or UniqueNames(graphs(model.graph))
        self.root = model.graph
        self._lists_stored = model.ir_version < CONSTANT_INPUTS_BELOW
        self._first: dict[ir.Graph, ir.Node | None] = {}

    def store(self, name: str, data: ir.TensorProtocol, graph: ir.Graph | None = None) -> ir.Value:
        """Return a new initializer of a graph, by default that of the model."""
        is_main = graph is None or graph is self.root  # an input of a body is another value
        return graph_edits.add_stored(graph or self.root, name, data, as_input=self._lists_stored and is_main)

    def behind(self, value: ir.Value, nodes: Sequence[ir.Node]) -> ir.Value:
        """Put nodes directly behind the producer of a value, for an input or a stored value at the start of
        its graph, in the order of the calls. Return the output of the last one.
        """
        producer, graph = value.producer(), graph_of(value)
        if producer is not None:
            graph.insert_after(producer, nodes)
            return nodes[-1].outputs[0]
        if graph not in self._first:
            self._first[graph] = next(iter(graph), None)
        first = self._first[graph]
        if first is None:
            graph.extend(nodes)
        else:
            graph.insert_before(first, nodes)
        return nodes[-1].outputs[0]


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


@contextlib.contextmanager
def instrument(model: ir.Model, types: Mapping[ir.Value, ir.TypeProtocol]) -> Generator[Instrument]:
    """Yield an Instrument of the model, which is edited in place; uses read what they are to when it ends.

    `types` are those of the values to cast that are no tensors.
    """
    points = Instrument(model, types)
    yield points
    redirect(points.redirections)


class Instrument(Inserter):
    """The values of a model, with what is put behind them.

    `redirections` are uses with what they are to read, all at once: onnx-ir copies all inputs of a node for
    each.
    """

    def __init__(self, model: ir.Model, types: Mapping[ir.Value, ir.TypeProtocol]) -> None:
        super().__init__(model)
        self._types = types
        self.opset = element_types.default_opset(model.graph.opset_imports)
        self.redirections: list[Redirection] = []
        self._ends: defaultdict[ir.Value, list[Use]] = defaultdict(list)
        for graph in graphs(model.graph):
            for port, value in enumerate(graph.outputs):
                self._ends[value].append(Use(graph, port))

    def uses(self, value: ir.Value) -> list[Use]:
        """Return the uses of a value: by nodes, also of what is put behind it, and as graph outputs."""
        return [*(Use(node, port) for node, port in value.uses()), *self._ends.get(value, ())]

    def model_outputs(self, value: ir.Value) -> list[Use]:
        """Return the uses of a value as an output of the model."""
        return [use for use in self._ends.get(value, ()) if use.holder is self.root]

    def read(self, uses: Iterable[Use], value: ir.Value, instead: ir.Value) -> None:
        """Have these uses of `value` read another value; an output of the model keeps its name."""
        uses = list(uses)
        self.redirections.append((uses, instead))
        if any(use.holder is self.root for use in uses):
            value.name, instead.name = instead.name, value.name

    def node(self, operator: str, inputs: Sequence[ir.Value], like: ir.Value, **attributes: int) -> ir.Node:
        """Return a node outside of any graph, whose output is named like a value."""
        output = ir.Value(name=self.names.of_value(like, operator.lower()))
        given = [ir.AttrInt64(name, value) for name, value in attributes.items()]
        return ir.Node("", operator, inputs, given, outputs=(output,), name=self.names.of_node(operator))

    def cast(self, value: ir.Value, dtype: ir.DataType, suffix: str) -> ir.Value:
        """Put a Cast behind a value, of the elements of a sequence or an optional, and return its output.

        Raises ModelError where no node can cast the value at the opset of the model.
        """
        name = self.names.of_value(value, suffix)
        kind = self._types.get(value)
        if kind is None or isinstance(kind, ir.TensorType):
            nodes = [cast(value, dtype, self.names.of_node(name))]
        else:
            nodes = self._container(value, kind, dtype)
        output = self.behind(value, nodes)
        output.name, output.shape = name, value.shape
        return output

    def _container(self, value: ir.Value, kind: ir.TypeProtocol, dtype: ir.DataType) -> list[ir.Node]:
        since = _MIN_OPSET[type(kind)]
        if self.opset < since:
            raise ModelError(
                f"no node can cast '{value.name}', of type {kind}, below opset {since}",
                where="the given model",
                remedy="use tensors instead, or convert the opset (onnx.version_converter)",
            )
        other = kind.dtype if dtype == ir.DataType.FLOAT else ir.DataType.FLOAT
        was = element_types.with_element(kind, other)
        return _cast_nodes(value, was, dtype, self.names)

    def stored(self, array: NDArray[Any]) -> ir.Value:
        """Return a new initializer of the model."""
        name = self.names.new_value("number")
        return self.store(name, ir.Tensor(array, name=name))


class Switches:
    """An additional input of a model, `name`: a vector of Booleans, each of which chooses between two values.

    Bodies read it from the outer scope.
    """

    def __init__(self, points: Instrument, root: ir.Graph) -> None:
        self._points = points
        self._vector = ir.Value(type=tensor(ir.DataType.BOOL), shape=ir.Shape([None]))
        self._vector.name = self.name = points.names.of_value(self._vector, "switches")
        root.inputs.append(self._vector)
        self.count = 0

    def choose(self, on: ir.Value, off: ir.Value) -> ir.Value:
        """Return the value that is `on`, which has a producer, while another switch is on, else `off`."""
        points, producer = self._points, on.producer()
        assert producer is not None, "what a switch turns on is computed"
        index = points.stored(np.array(self.count, np.int64))
        self.count += 1
        # a scalar, so that Where keeps the rank of a value
        switch = points.behind(self._vector, [points.node("Gather", (self._vector, index), self._vector)])
        if points.opset >= _FIRST_WITH_WHERE:
            node = points.node("Where", (switch, on, off), off)
        else:
            node = points.node("If", (switch,), off)
            for name, result in (("then_branch", on), ("else_branch", off)):
                node.attributes[name] = ir.AttrGraph(name, self._branch(result))
        graph_of(on).insert_after(producer, node)
        node.outputs[0].type, node.outputs[0].shape = tensor(ir.DataType.FLOAT), off.shape
        return node.outputs[0]

    def _branch(self, value: ir.Value) -> ir.Graph:
        """Return a body that forwards a value."""
        node = self._points.node("Identity", (value,), value)
        node.outputs[0].type = tensor(ir.DataType.FLOAT)
        return ir.Graph((), node.outputs, nodes=[node], name=self._points.names.of_node("branch"))


_FIRST_WITH_WHERE = 9
"""The first opset with Where; below it, an If does the same with copies."""


# Casts of sequences, element by element, and of optionals, if they are not empty.

_MIN_OPSET: dict[type[ir.TypeProtocol], int] = {ir.SequenceType: 13, ir.OptionalType: 16}
"""The opsets in which a Loop can carry sequences and an If can output optionals (ONNX 1.8 and 1.11)."""


def _cast_nodes(
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
