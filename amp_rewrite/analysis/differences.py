"""Differences within the inputs of a model, as what a series has above its mean, or points from each other.

What is taken away is what they have in common, and half would round away what they have not: at 1000 it has
steps of 1/2. Up to the difference nothing else is computed, so that float32 costs few Casts, if any.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.from_inputs import FromInputs, read_by
from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_AVERAGES = frozenset(("AveragePool", "GlobalAveragePool", "ReduceMean"))
_CARRY = (MOVERS - {"If", "Loop", "Scan"}) | _AVERAGES | {"Cast"}


def check(graph: UnitGraph, stored: Container[ir.Value]) -> Mapping[int, Evidence]:
    """The units that take inputs from each other, and those that move or average inputs for that."""
    if not graph.by_operator.get("Sub"):
        return {}
    carried = FromInputs(graph, stored, lambda unit: effective_op(graph.units[unit].node) in _CARRY)
    ends = [unit for unit in graph.by_operator["Sub"] if _is_difference(graph, unit, carried)]
    way = reach(ends, graph.predecessors.__getitem__, carried.units.__contains__)
    return dict.fromkeys((*ends, *way), Evidence(Authority.RANGE, Reason.DIFFERENCE))


def _is_difference(graph: UnitGraph, unit: int, carried: FromInputs) -> bool:
    """Whether a Sub, that no idiom has, takes from inputs what inputs have."""
    read = tuple(read_by(graph, unit))
    return unit not in graph.spelled and len(read) > 1 and all(map(carried.has, read))
