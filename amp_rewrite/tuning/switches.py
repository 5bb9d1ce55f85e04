"""Switches in a float32 model: one more input, a Boolean vector, chooses for each of some values whether its
consumers read it as it is, or rounded. Bodies read the vector from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.model.traversal import graphs
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types import element_types
from amp_rewrite.rewriting.cast_insertion import Placer, redirect


class Switches:
    """The switches of a model, which is edited in place; `name` is that of the input."""

    def __init__(self, root: ir.Graph, count: int) -> None:
        self._root = root
        self.opset = element_types.default_opset(root.opset_imports)
        self._has_where = self.opset >= _FIRST_WITH_WHERE
        self.names, self.placer = UniqueNames(graphs(root)), Placer()
        self._ends: dict[ir.Value, list[Use]] = {}
        for inner in graphs(root):
            for port, value in enumerate(inner.outputs):
                self._ends.setdefault(value, []).append(Use(inner, port))
        self._vector = ir.Value(type=element_types.tensor(ir.DataType.BOOL), shape=ir.Shape([count]))
        self._vector.name = self.name = self.names.of_value(self._vector, "switches")
        root.inputs.append(self._vector)

    def uses(self, value: ir.Value) -> list[Use]:
        """What uses a value: nodes, and graphs whose output it is."""
        return [Use(node, port) for node, port in value.uses()] + self._ends.get(value, [])

    def choose(self, at: int, uses: Iterable[Use], rounded: ir.Value, exact: ir.Value) -> None:
        """Makes these uses read `rounded`, which a node makes, where the switch is on, and `exact` where not.
        An output of the model keeps its name.
        """
        uses = list(uses)
        chosen = self._chosen(self._switch(at), rounded, exact)
        chosen.type, chosen.shape = element_types.tensor(ir.DataType.FLOAT), exact.shape
        outputs = {self._root.outputs[use.port] for use in uses if use.holder is self._root}
        redirect([(uses, chosen)])
        for value in outputs:
            value.name, chosen.name = chosen.name, value.name
            chosen.type, chosen.shape = value.type, value.shape

    def _switch(self, at: int) -> ir.Value:
        """One element of the vector, as a scalar: a value keeps its rank behind Where."""
        index = self.stored(np.array(at, np.int64), self._vector)
        node = self.node("Gather", (self._vector, index), self._vector)
        self.placer.behind([node], self._vector)
        return node.outputs[0]

    def _chosen(self, switch: ir.Value, rounded: ir.Value, exact: ir.Value) -> ir.Value:
        if self._has_where:
            node = self.node("Where", (switch, rounded, exact), exact)
        else:
            node = self.node("If", (switch,), exact)
            for name, result in (("then_branch", rounded), ("else_branch", exact)):
                node.attributes[name] = ir.AttrGraph(name, self._branch(result))
        producer = rounded.producer()
        assert producer is not None, "what is rounded is made by a Cast"
        graph_of(rounded).insert_after(producer, node)
        return node.outputs[0]

    def _branch(self, value: ir.Value) -> ir.Graph:
        """A body that passes a value on."""
        node = self.node("Identity", (value,), value)
        node.outputs[0].type = element_types.tensor(ir.DataType.FLOAT)
        return ir.Graph((), node.outputs, nodes=[node], name=self.names.of_node("branch"))

    def stored(self, array: np.ndarray, like: ir.Value) -> ir.Value:
        """A new initializer, named like a value."""
        stored = ir.Value(name=self.names.of_value(like, "number"))
        stored.const_value = ir.Tensor(array, name=stored.name)
        self._root.register_initializer(stored)
        return stored

    def node(self, operator: str, inputs: Sequence[ir.Value], like: ir.Value) -> ir.Node:
        """A node outside any graph, whose output is named like a value."""
        made = ir.Value(name=self.names.of_value(like, operator.lower()))
        return ir.Node("", operator, inputs, outputs=(made,), name=self.names.of_node(operator))


_FIRST_WITH_WHERE = 9
"""The opset that has Where; before it, an If does the same with copies."""
