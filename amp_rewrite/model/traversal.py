"""Traversal of a graph and the graphs nested in it, and of what can be reached in any graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir

from amp_rewrite.onnx_types import control_flow

GraphNodes = Mapping[ir.Graph, Sequence[ir.Node]]
"""The nodes of each graph, as a snapshot."""


def graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield a graph and all graphs nested in it: outer before inner, and in node order."""
    yield graph
    for body in bodies(graph):
        yield from graphs(body)


def bodies(graph: Iterable[ir.Node]) -> Iterator[ir.Graph]:
    """Yield the bodies of the nodes of a graph, in node order, without those nested deeper."""
    for node in [node for node in graph if control_flow.may_have_bodies(node)]:
        yield from control_flow.bodies(node)


def nodes(graph: ir.Graph) -> dict[ir.Graph, tuple[ir.Node, ...]]:
    """Return the nodes of a graph and of all graphs nested in it, in the order of `graphs`."""
    nodes_by_graph = {graph: tuple(graph)}  # iterating a tuple is five times faster than onnx-ir's list
    for body in bodies(nodes_by_graph[graph]):
        nodes_by_graph.update(nodes(body))
    return nodes_by_graph


def every_node(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph and of all graphs nested in it, in the order of `graphs`."""
    for subgraph in graphs(graph):
        yield from subgraph


def nodes_inner_first(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield nodes and the nodes nested in them, each after those of its bodies."""
    for node in nodes:
        for body in control_flow.bodies(node):
            yield from nodes_inner_first(body)
        yield node


def needed_nodes(nodes: GraphNodes) -> set[ir.Node]:
    """Return the nodes on which an output of the model or of a body depends."""
    outputs = (value for graph in nodes for value in graph.outputs)
    return set(reach(producers(outputs), lambda node: producers(node.inputs)))


def producers(values: Iterable[ir.Value | None]) -> Iterator[ir.Node]:
    """Yield the nodes that compute these values."""
    return filter(None, (value.producer() for value in values if value is not None))


Place = TypeVar("Place", bound=Hashable)


def reach(
    starts: Iterable[Place],
    following: Callable[[Place], Iterable[Place]],
    passes: Callable[[Place], bool] = lambda _: True,
) -> dict[Place, None]:
    """Return what can be reached from these along `following`, through what satisfies `passes` only."""
    closure, waiting = dict[Place, None](), list(starts)
    while waiting:
        place = waiting.pop()
        if place not in closure and passes(place):
            closure[place] = None
            waiting += following(place)
    return closure
