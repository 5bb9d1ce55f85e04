"""Exponentials that are taken from 1: where one is near 1, what is left is hardly more than what half rounds.

The gates of a recurrence are sqrt(1 - exp(2x)), also as a square, and what a density absorbs is 1 - exp(x).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason


def find(graph: UnitGraph, freed: Iterable[int]) -> Mapping[int, Evidence]:
    """What takes exponentials that are freed, or products with them, from 1, and these."""
    found: set[int] = set()
    for unit in freed:
        if graph.units[unit].node.op_type == "Exp":
            found.update(_way_to_1(graph, unit))
    return dict.fromkeys(found, Evidence(Authority.RANGE, Reason.TAKEN_FROM_1))


def _way_to_1(graph: UnitGraph, unit: int) -> Iterator[int]:
    """The units from an exponential to what takes it from 1; none where nothing does."""
    products = _multiplied(graph, [unit])
    negated = [at for at in _readers(graph, products) if patterns.is_default(graph.units[at].node, "Neg")]
    minus = _multiplied(graph, negated)
    ends = [*_meeting_1(graph, products, "Sub"), *_meeting_1(graph, minus, "Add")]
    way = {*products, *minus}
    yield from (*ends, *reach(ends, graph.predecessors.__getitem__, way.__contains__))


def _multiplied(graph: UnitGraph, units: list[int]) -> list[int]:
    """These units, and those that move, multiply or square what they make."""
    return [
        *units,
        *reach(units, lambda at: graph.successors[at], lambda at: _is_factor(graph.units[at].node)),
    ]


def _is_factor(node: ir.Node) -> bool:
    """Whether a node moves, multiplies or squares."""
    moves = effective_op(node) in MOVERS or patterns.is_default(node, "Mul")
    return moves or patterns.square_of(node) is not None


def _readers(graph: UnitGraph, units: Iterable[int]) -> set[int]:
    return {reader for at in units for reader in graph.successors[at]}


def _meeting_1(graph: UnitGraph, units: Iterable[int], operator: str) -> Iterator[int]:
    for at in sorted(_readers(graph, units)):
        node = graph.units[at].node
        if patterns.is_default(node, operator) and _has_1(node):
            yield at


def _has_1(node: ir.Node) -> bool:
    return any(patterns.scalar(value) == 1 for value in node.inputs)
