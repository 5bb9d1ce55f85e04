"""Known faults of runtimes that a valid half model would trip over."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from amp_rewrite.findings import Finding
from amp_rewrite.units import UnitGraph

_CRASH = "onnxruntime's CPU provider crashes on a half Transpose of the first axis before a MatMul"


def check(graph: UnitGraph) -> Mapping[int, Finding]:
    """The units that stay float32 so that no runtime that we know of fails on the result."""
    return {
        unit.index: Finding(_CRASH)
        for unit in graph.units
        if unit.node.op_type == "Transpose" and _moves_first(unit.node) and _feeds_product(graph, unit.index)
    }


def _moves_first(node: ir.Node) -> bool:
    """Seen with onnxruntime 1.31.1: perm [1, 0, 2], [1, 2, 0], [1, 2, 0, 3] and their like crash when the
    session is made (MatmulTransposeFusion, then NchwcTransformer); [0, 2, 1] and [1, 0] do not.
    """
    perm = node.attributes.get("perm")
    if perm is None or perm.is_ref():
        return False
    order = list(perm.as_ints())
    return len(order) > 2 and order[0] == 1 and 0 in order[-2:]


def _feeds_product(graph: UnitGraph, unit: int) -> bool:
    """Whether the first operand of a MatMul is what the Transpose gives."""
    return any(
        site.port == 0 and graph.units[reader].node.op_type == "MatMul"
        for value in graph.units[unit].makes
        for reader, site in graph.readers.get(value, ())
    )
