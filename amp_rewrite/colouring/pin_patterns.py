"""Matching of pin patterns with the names of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.policy.node_patterns import matcher, pinned_as

Nodes = tuple[ir.Node, ...]
Around = Mapping[ir.Node, Nodes]
"""The chain of enclosing nodes of every node: outermost first, itself last."""


def around(graph: ir.Graph, outer: Nodes = ()) -> Iterator[tuple[ir.Node, Nodes]]:
    """Yield every node of a graph and of nested graphs, with its enclosing nodes."""
    for node in graph:
        yield node, (*outer, node)
        for body in control_flow.bodies(node):
            yield from around(body, (*outer, node))


def pinnable(graph: UnitGraph) -> set[str]:
    """Return the names of nodes that pins can match."""
    return set(map(pinned_as, with_units(graph, dict(around(graph.root))))) - {""}


def with_units(graph: UnitGraph, nested: Around) -> Mapping[ir.Node, None]:
    """Return the nodes with units, and the nodes around these."""
    return {node: None for unit in graph.units for node in nested[unit.node]}


def matching(nodes: Mapping[ir.Node, None], pattern: str, by: str) -> set[ir.Node]:
    """Return the nodes that a pattern in the field `by` of Pins names, or those of an operator there.

    Raises OptionError for an invalid pattern.
    """
    if by == OPERATORS:
        return {node for node in nodes if schema.written(node.domain, node.op_type) == pattern}
    matches = matcher(pattern, f"`Pins.{by}`", {pinned_as(node) for node in nodes})
    return {node for node in nodes if matches(pinned_as(node))}


OPERATORS = "only_op"
"""The field of Pins that has names of operators."""


def names(nodes: Iterable[ir.Node], by: str) -> set[str]:
    """Return the names of nodes that patterns in the field `by` of Pins match."""
    return {schema.written(n.domain, n.op_type) if by == OPERATORS else pinned_as(n) for n in nodes}
