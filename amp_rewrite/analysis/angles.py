"""Angles: what ends in a Sin or Cos, whose error is that of the angle itself, however large that is."""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx_ir as ir

from amp_rewrite.analysis import long_sums
from amp_rewrite.analysis.from_inputs import FromInputs
from amp_rewrite.analysis.operators import ARITHMETIC, MOVERS, PRODUCTS, effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

TRIGONOMETRY = frozenset(("Sin", "Cos"))
_CARRY = MOVERS | ARITHMETIC | PRODUCTS | {"Cast"}
_COORDINATES = 3
"""The terms of a product that makes an angle of a point in space or in time; those of features are more."""


def leading_to(graph: UnitGraph) -> frozenset[int]:
    """The units whose result reaches a Sin or Cos through products and arithmetic, and those themselves."""
    ends = [unit for operator in TRIGONOMETRY for unit in graph.by_operator.get(operator, ())]
    before = graph.predecessors.__getitem__
    return frozenset((*ends, *reach(ends, before, lambda u: effective_op(graph.units[u].node) in _CARRY)))


def check(graph: UnitGraph, stored: Container[ir.Value]) -> Mapping[int, Evidence]:
    """The units that compute an angle of float32 inputs of the model, as coordinates times frequencies.

    In half the angle of 100 has steps of 1/16. Products of more terms are no such units, and no Conv; a Sin
    of an input itself is as its list says.
    """
    leading = leading_to(graph)
    ends = {unit for unit in leading if graph.units[unit].node.op_type in TRIGONOMETRY}
    carrying = {unit for unit in leading - ends if _is_small(graph.units[unit].node)}
    way = FromInputs(graph, stored, carrying.__contains__).units
    reached = (unit for before in way for unit in graph.successors[before] if unit in ends)
    return dict.fromkeys((*way, *reached), Evidence(Authority.RANGE, Reason.TO_ANGLE))


def _is_small(node: ir.Node) -> bool:
    """Whether a node is no product, or one of a few terms."""
    if node.op_type not in PRODUCTS:
        return True
    terms = long_sums.terms(node)
    return terms is not None and terms <= _COORDINATES and "Conv" not in node.op_type
