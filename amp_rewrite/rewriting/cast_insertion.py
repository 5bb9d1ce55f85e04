"""New Casts: where they are inserted, and which uses read their result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.onnx_types.element_types import tensor


class Placer:
    """Puts nodes behind the makers of values; at the front of a graph in the order of the calls."""

    def __init__(self) -> None:
        self._first: dict[ir.Graph, ir.Node | None] = {}

    def behind(self, nodes: Sequence[ir.Node], value: ir.Value) -> None:
        """In order, right behind the maker of `value`; behind inputs and weights is the graph's beginning."""
        maker, graph = value.producer(), graph_of(value)
        if maker is not None:
            graph.insert_after(maker, nodes)
            return
        if graph not in self._first:
            self._first[graph] = next(iter(graph), None)
        first = self._first[graph]
        if first is None:
            graph.extend(nodes)
        else:
            graph.insert_before(first, nodes)


def cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    """A Cast node of that name, not yet in any graph; its output has a type and a shape, and no name."""
    made = ir.Value(type=tensor(dtype), shape=value.shape)
    return ir.Node("", "Cast", (value,), (ir.AttrInt64("to", int(dtype)),), outputs=(made,), name=name)


def graph_of(value: ir.Value) -> ir.Graph:
    """The graph in which a value of a model is made, entered or stored."""
    graph = value.graph
    assert graph is not None, "every value of a model belongs to a graph"
    return graph


def redirect(sites: Iterable[Use], value: ir.Value) -> None:
    """Has these places read `value` instead of what they read."""
    for holder, port in sites:
        if type(holder) is ir.Node:  # as in units.value_at
            holder.replace_input_with(port, value)
        elif isinstance(holder, ir.Graph):
            holder.outputs[port] = value
