"""Traversal of a graph and the graphs nested in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_rewrite.onnx_types import control_flow


def graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and all graphs nested in it: outer before inner, and in node order."""
    yield graph
    for body in bodies(graph):
        yield from graphs(body)


def bodies(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The bodies of the nodes of a graph, in node order, without those nested deeper."""
    for node in [node for node in graph if control_flow.may_hold(node)]:
        yield from control_flow.bodies(node)


def operators(held: Iterable[ir.Graph]) -> frozenset[str]:
    """The operator types of the nodes of these graphs, whatever their domains."""
    return frozenset([node.op_type for graph in held for node in graph])
