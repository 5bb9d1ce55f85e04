"""Values with as many elements as something occurs in other values: that may be none at all."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow

COUNTING = frozenset("Compress NonMaxSuppression NonZero Unique".split())
"""Operators whose outputs are as long as what they find."""


def values(graph: ir.Graph, nodes: GraphNodes) -> set[ir.Value]:
    """What these operators give, and what follows from it, in a graph and its bodies."""
    found: set[ir.Value] = set()
    if any(node.op_type in COUNTING for held in nodes.values() for node in held):
        _follow(graph, nodes, found)
    return found


def _follow(graph: ir.Graph, nodes: GraphNodes, found: set[ir.Value]) -> None:
    for node in nodes[graph]:
        is_reached = node.op_type in COUNTING or not found.isdisjoint(node.inputs)
        for body in control_flow.bodies(node):
            if is_reached:
                found.update(body.inputs)
            _follow(body, nodes, found)
            is_reached = is_reached or not found.isdisjoint(body.outputs)
        if is_reached:
            found.update(node.outputs)
