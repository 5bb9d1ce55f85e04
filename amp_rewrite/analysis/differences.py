"""Differences within the inputs of a model, as what a series has above its mean, or points from each other.

What is taken away is what they have in common, and half would round away what they have not: at 1000 it has
steps of 1/2. Up to the difference nothing else is computed, so that float32 costs few Casts, if any.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.derived import Derived
from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph, value_of
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_AVERAGES = frozenset(("AveragePool", "GlobalAveragePool", "ReduceMean"))
_CARRY = (MOVERS - {"If", "Loop", "Scan"}) | _AVERAGES | {"Cast"}


def check(graph: UnitGraph, stored: Container[ir.Value]) -> Mapping[int, Evidence]:
    """The units that take inputs from each other, and those that move or average inputs for that."""
    if not graph.by_operator.get("Sub"):
        return {}
    inputs = frozenset(value for value in graph.root.inputs if not value.is_initializer())
    carried = _carried(graph, inputs, Derived(stored))
    ends = [unit for unit in graph.by_operator["Sub"] if _is_difference(graph, unit, inputs, carried)]
    way = reach(ends, graph.predecessors.__getitem__, carried.__contains__)
    return dict.fromkeys((*ends, *way), Evidence(Authority.RANGE, Reason.DIFFERENCE))


def _carried(graph: UnitGraph, inputs: Collection[ir.Value], derived: Derived) -> frozenset[int]:
    """The units whose results are elements of inputs, or averages of these."""
    found = set[int]()
    todo = [unit for value in inputs for unit, _ in graph.uses.get(value, ())]
    while todo:
        unit = todo.pop()
        if unit in found or effective_op(graph.units[unit].node) not in _CARRY:
            continue
        if all(_is_carried(v, graph, inputs, found) or derived.has(v) for v in _read(graph, unit)):
            found.add(unit)
            todo.extend(graph.successors[unit])
    return frozenset(found)


def _is_difference(
    graph: UnitGraph, unit: int, inputs: Container[ir.Value], carried: Container[int | None]
) -> bool:
    """Whether a Sub, that no idiom has, takes from inputs what inputs have."""
    read = tuple(_read(graph, unit))
    known = unit not in graph.spelled and len(read) > 1
    return known and all(_is_carried(value, graph, inputs, carried) for value in read)


def _is_carried(
    value: ir.Value, graph: UnitGraph, inputs: Container[ir.Value], carried: Container[int | None]
) -> bool:
    return value in inputs or graph.producer.get(value) in carried


def _read(graph: UnitGraph, unit: int) -> Iterator[ir.Value]:
    return (value for use in graph.units[unit].uses if (value := value_of(use)) is not None)
