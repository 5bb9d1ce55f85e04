"""A float32 model with a switch for every site: one session emulates any choice of half units.

While a switch is on, all that reads the value of its site reads it rounded to half, as in the emulation
(running.emulation). The switches are one more input, a Boolean vector; bodies read them from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.loading import Loaded
from amp_rewrite.model.traversal import graphs
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import element_types
from amp_rewrite.rewriting.cast_insertion import Placer, cast, graph_of, redirect
from amp_rewrite.tuning.sites import Site


@dataclass(frozen=True, slots=True)
class SwitchedModel:
    """The model, the name of its additional input, and how many switches that has."""

    loaded: Loaded
    switches: str
    count: int


def switched(analysis: Analysis, sites: Sequence[Site]) -> SwitchedModel:
    """The model of an analysis, edited in place, with a switch for each of its sites, in their order."""
    analysis.state.is_edited = True
    clamped = (change.stored.value for change in analysis.plan.tensors if change.saturates)
    switcher = _Switcher(analysis, len(sites), clamped)
    for at, site in enumerate(sites):
        switcher.add(at, site.value)
    return SwitchedModel(analysis.loaded, switcher.name, len(sites))


class _Switcher:
    def __init__(self, analysis: Analysis, count: int, clamped: Iterable[ir.Value]) -> None:
        self._root: ir.Graph = analysis.graph.root
        self._half: Half = analysis.options.half
        self._clamped = frozenset(clamped)
        self._has_where = element_types.default_opset(self._root.opset_imports) >= _FIRST_WITH_WHERE
        self._names, self._placer = UniqueNames(graphs(self._root)), Placer()
        self._ends: dict[ir.Value, list[Use]] = {}
        for inner in analysis.graph.nodes:
            for port, value in enumerate(inner.outputs):
                self._ends.setdefault(value, []).append(Use(inner, port))
        self._vector = ir.Value(type=element_types.tensor(ir.DataType.BOOL), shape=ir.Shape([count]))
        self._vector.name = self.name = self._names.of_value(self._vector, "switches")
        self._root.inputs.append(self._vector)

    def add(self, at: int, value: ir.Value) -> None:
        """Adds a switch for a value."""
        uses = [Use(node, port) for node, port in value.uses()] + self._ends.get(value, [])
        switch = self._switch(at)
        rounded = self._rounded(value)
        chosen = self._chosen(switch, rounded, value)
        redirect(uses, chosen)
        if any(use.holder is self._root for use in uses):
            value.name, chosen.name = chosen.name, value.name
            chosen.type, chosen.shape = value.type, value.shape

    def _switch(self, at: int) -> ir.Value:
        """One element of the vector, as a scalar: a value keeps its rank behind Where."""
        index = self._stored(np.array(at, np.int64), self._vector)
        node = self._node("Gather", (self._vector, index), self._vector)
        self._placer.behind([node], self._vector)
        return node.outputs[0]

    def _rounded(self, value: ir.Value) -> ir.Value:
        """The value, cast to half and back; stored ones that the plan clamps are clamped before."""
        nodes = self._clamp(value) if value in self._clamped else []
        for dtype in (self._half.dtype, ir.DataType.FLOAT):
            made = cast(nodes[-1].outputs[0] if nodes else value, dtype, self._names.of_node("Cast"))
            made.outputs[0].name = self._names.of_value(value, "rounded")
            nodes.append(made)
        self._placer.behind(nodes, value)
        return nodes[-1].outputs[0]

    def _clamp(self, value: ir.Value) -> list[ir.Node]:
        nodes: list[ir.Node] = []
        for operator, bound in (("Max", -self._half.largest), ("Min", self._half.largest)):
            limit = self._stored(np.array(bound, np.float32), value)
            nodes.append(self._node(operator, (nodes[-1].outputs[0] if nodes else value, limit), value))
        return nodes

    def _chosen(self, switch: ir.Value, rounded: ir.Value, value: ir.Value) -> ir.Value:
        if self._has_where:
            node = self._node("Where", (switch, rounded, value), value)
        else:
            node = self._node("If", (switch,), value)
            for name, result in (("then_branch", rounded), ("else_branch", value)):
                node.attributes[name] = ir.AttrGraph(name, self._branch(result))
        producer = rounded.producer()
        assert producer is not None, "what is rounded is made by a Cast"
        graph_of(rounded).insert_after(producer, node)
        return node.outputs[0]

    def _branch(self, value: ir.Value) -> ir.Graph:
        """A body that passes a value on."""
        node = self._node("Identity", (value,), value)
        node.outputs[0].type = element_types.tensor(ir.DataType.FLOAT)
        return ir.Graph((), node.outputs, nodes=[node], name=self._names.of_node("branch"))

    def _stored(self, array: np.ndarray, like: ir.Value) -> ir.Value:
        stored = ir.Value(name=self._names.of_value(like, "number"))
        stored.const_value = ir.Tensor(array, name=stored.name)
        self._root.register_initializer(stored)
        return stored

    def _node(self, operator: str, inputs: Sequence[ir.Value], like: ir.Value) -> ir.Node:
        made = ir.Value(name=self._names.of_value(like, operator.lower()))
        return ir.Node("", operator, inputs, outputs=(made,), name=self._names.of_node(operator))


_FIRST_WITH_WHERE = 9
"""The opset that has Where; before it, an If does the same with copies."""
