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
from amp_rewrite.model.graph_edits import UniqueNames, graph_of
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import element_types
from amp_rewrite.rewriting import cast_insertion
from amp_rewrite.rewriting.cast_insertion import Placer, Redirection, redirect


@contextlib.contextmanager
def instrument(model: ir.Model, types: Mapping[ir.Value, ir.TypeProtocol]) -> Generator[Instrument]:
    """Yield an Instrument of the model, which is edited in place; uses read what they are to when it ends.

    `types` are those of the values to cast that are no tensors.
    """
    points = Instrument(model, types)
    yield points
    redirect(points.redirections)


class Instrument:
    """The values of a model, with what is put behind them.

    `redirections` are uses with what they are to read, all at once: onnx-ir copies all inputs of a node for
    each.
    """

    def __init__(self, model: ir.Model, types: Mapping[ir.Value, ir.TypeProtocol]) -> None:
        self._root, self._types = model.graph, types
        self._lists_stored = model.ir_version < CONSTANT_INPUTS_BELOW
        self.opset = element_types.default_opset(model.graph.opset_imports)
        self.names, self._placer = UniqueNames(graphs(model.graph)), Placer()
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
        return [use for use in self._ends.get(value, ()) if use.holder is self._root]

    def read(self, uses: Iterable[Use], value: ir.Value, instead: ir.Value) -> None:
        """Have these uses of `value` read another value; an output of the model keeps its name."""
        uses = list(uses)
        self.redirections.append((uses, instead))
        if any(use.holder is self._root for use in uses):
            value.name, instead.name = instead.name, value.name

    def node(self, operator: str, inputs: Sequence[ir.Value], like: ir.Value, **attributes: int) -> ir.Node:
        """Return a node outside of any graph, whose output is named like a value."""
        output = ir.Value(name=self.names.of_value(like, operator.lower()))
        given = [ir.AttrInt64(name, value) for name, value in attributes.items()]
        return ir.Node("", operator, inputs, given, outputs=(output,), name=self.names.of_node(operator))

    def behind(self, value: ir.Value, nodes: Sequence[ir.Node]) -> ir.Value:
        """Put nodes directly behind the producer of a value, for an input or a stored value at the start of
        its graph, and return the output of the last one.
        """
        self._placer.behind(nodes, value)
        return nodes[-1].outputs[0]

    def cast(self, value: ir.Value, dtype: ir.DataType, suffix: str) -> ir.Value:
        """Put a Cast behind a value, of the elements of a sequence or an optional, and return its output.

        Raises ModelError where no node can cast the value at the opset of the model.
        """
        name = self.names.of_value(value, suffix)
        kind = self._types.get(value)
        if kind is None or isinstance(kind, ir.TensorType):
            nodes = [cast_insertion.cast(value, dtype, self.names.of_node(name))]
        else:
            nodes = self._container(value, kind, dtype)
        output = self.behind(value, nodes)
        output.name, output.shape = name, value.shape
        return output

    def _container(self, value: ir.Value, kind: ir.TypeProtocol, dtype: ir.DataType) -> list[ir.Node]:
        since = cast_insertion.MIN_OPSET[type(kind)]
        if self.opset < since:
            raise ModelError(
                f"no node can cast '{value.name}', of type {kind}, below opset {since}",
                where="the given model",
                remedy="use tensors instead, or convert the opset (onnx.version_converter)",
            )
        other = kind.dtype if dtype == ir.DataType.FLOAT else ir.DataType.FLOAT
        was = element_types.with_element(kind, other)
        return cast_insertion.cast_nodes(value, was, dtype, self.names)

    def stored(self, array: NDArray[Any]) -> ir.Value:
        """Return a new initializer of the model."""
        data = ir.Tensor(array, name=self.names.new_value("number"))
        number = ir.Value(name=data.name, type=element_types.tensor(data.dtype), const_value=data)
        number.shape = ir.Shape(array.shape)
        graph_edits.register(number, self._root, as_input=self._lists_stored)
        return number


class Switches:
    """An additional input of a model, `name`: a vector of Booleans, each of which chooses between two values.

    Bodies read it from the outer scope.
    """

    def __init__(self, points: Instrument, root: ir.Graph) -> None:
        self._points = points
        self._vector = ir.Value(type=element_types.tensor(ir.DataType.BOOL), shape=ir.Shape([None]))
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
        node.outputs[0].type, node.outputs[0].shape = element_types.tensor(ir.DataType.FLOAT), off.shape
        return node.outputs[0]

    def _branch(self, value: ir.Value) -> ir.Graph:
        """Return a body that forwards a value."""
        node = self._points.node("Identity", (value,), value)
        node.outputs[0].type = element_types.tensor(ir.DataType.FLOAT)
        return ir.Graph((), node.outputs, nodes=[node], name=self._points.names.of_node("branch"))


_FIRST_WITH_WHERE = 9
"""The first opset with Where; below it, an If does the same with copies."""
