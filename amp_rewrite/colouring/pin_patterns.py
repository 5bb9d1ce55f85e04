"""Names of nodes, and the patterns by which a user names them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy.node_patterns import matcher, pinned_as

Nodes = tuple[ir.Node, ...]
Around = Mapping[ir.Node, Nodes]
"""Every node, with the nodes in whose bodies it stands, the outermost first, and itself."""


def around(graph: ir.Graph, outer: Nodes = ()) -> Iterator[tuple[ir.Node, Nodes]]:
    """Every node of a graph and the graphs below it, with those around it."""
    for node in graph:
        yield node, (*outer, node)
        for body in control_flow.bodies(node):
            yield from around(body, (*outer, node))


def pinnable(graph: UnitGraph) -> set[str]:
    """The names by which pins find nodes."""
    return set(map(pinned_as, with_units(graph, dict(around(graph.root))))) - {""}


def pinned(graph: UnitGraph, patterns: Iterable[str]) -> tuple[int, ...]:
    """How many nodes each pattern names: OptionError, as `classify` raises it, for one that is none."""
    held = with_units(graph, dict(around(graph.root))) if patterns else {}
    return tuple(len(matching(held, pattern, "")) for pattern in patterns)


def with_units(graph: UnitGraph, nested: Around) -> Mapping[ir.Node, None]:
    """The nodes that have units, or have such nodes in their bodies."""
    return {node: None for unit in graph.units for node in nested[unit.node]}


def matching(held: Mapping[ir.Node, None], pattern: str, field: str) -> set[ir.Node]:
    """The nodes that a pattern names; OptionError, which names the `field`, for one that is not valid."""
    matches = matcher(pattern, field, {pinned_as(node) for node in held})
    return {node for node in held if matches(pinned_as(node))}
