"""Insertion of Casts into a graph, and redirection of the uses of a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.model.graph_edits import graph_of, replace_inputs
from amp_rewrite.onnx_types.element_types import tensor

Redirection = tuple[Iterable[Use], ir.Value]
"""Uses, and the value that they are to read."""


class Placer:
    """Inserts nodes after the producers of values; at the start of a graph in the order of the calls."""

    def __init__(self) -> None:
        self._first: dict[ir.Graph, ir.Node | None] = {}

    def behind(self, nodes: Sequence[ir.Node], value: ir.Value) -> None:
        """Inserts nodes directly after the producer of `value`; for inputs and initializers, at the start."""
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
    """A Cast node outside any graph; its output has a type and a shape, but no name."""
    made = ir.Value(type=tensor(dtype), shape=value.shape)
    return ir.Node("", "Cast", (value,), (ir.AttrInt64("to", int(dtype)),), outputs=(made,), name=name)


def redirect(redirections: Iterable[Redirection]) -> None:
    """Has uses read other values, all those of a node at once."""
    ports: dict[ir.Node, dict[int, ir.Value | None]] = {}
    for uses, value in redirections:
        for holder, port in uses:
            if type(holder) is ir.Node:  # as in units.value_of
                ports.setdefault(holder, {})[port] = value
            elif isinstance(holder, ir.Graph):
                holder.outputs[port] = value
    for node, values in ports.items():
        replace_inputs(node, values)
