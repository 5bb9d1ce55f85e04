"""What lists deny for its range, and bounds prove tame: exponentials, powers and sums that half holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis import varying
from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.observed import HEADROOM
from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph, value_of
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_POWER = 250.0**2
"""The largest power: 250 squared, where half ends at 255.9 squared."""
_DEGREES = (1.0, 4.0)


def candidates(facts: Facts) -> Iterator[int]:
    """The units of these operators that stand for themselves, and that nothing found holds in float32."""
    for operator in _LIMITS:
        for unit in facts.graph.by_operator.get(operator, ()):
            if unit not in facts.graph.spelled and unit not in facts.findings:
                node = facts.graph.units[unit].node
                if not node.domain and (operator != "Mul" or _is_square(node)):
                    yield unit


def _is_square(node: ir.Node) -> bool:
    return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]


def find(facts: Facts, proven: Proven, half: Half) -> Mapping[int, Evidence]:
    """The candidates that half holds whatever the inputs, each with the bound that proves it."""
    changing = varying.find(facts.graph.nodes)
    found: dict[int, Evidence] = {}
    for unit in candidates(facts):
        node = facts.graph.units[unit].node
        value, limit = _LIMITS[node.op_type](node, half, changing)
        number = proven.of(value).high if node.op_type == "Exp" else proven.of(value).most
        if value is not None and number <= limit and (limit == 0 or _are_within(facts, unit, proven, half)):
            name = value.name or ""
            found[unit] = Evidence(Authority.PROOF, Reason.PROVEN_TAME, name, number, limit, half.name)
    return found


def taken_from_1(graph: UnitGraph, freed: Iterable[int]) -> Mapping[int, Evidence]:
    """What takes exponentials that are freed, or products with them, from 1, and these: where an exponential
    is near 1, what is left is hardly more than what half rounds.

    The gates of a recurrence are sqrt(1 - exp(2x)), and what a density absorbs is 1 - exp(x).
    """
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
    """These units, and those that move or multiply what they make."""
    return [
        *units,
        *reach(units, lambda at: graph.successors[at], lambda at: _is_factor(graph.units[at].node)),
    ]


def _is_factor(node: ir.Node) -> bool:
    return _moves(node) or patterns.is_default(node, "Mul")


def _readers(graph: UnitGraph, units: Iterable[int]) -> set[int]:
    return {reader for at in units for reader in graph.successors[at]}


def _meeting_1(graph: UnitGraph, units: Iterable[int], operator: str) -> Iterator[int]:
    for at in sorted(_readers(graph, units)):
        node = graph.units[at].node
        if patterns.is_default(node, operator) and _has_1(node):
            yield at


def _has_1(node: ir.Node) -> bool:
    return any(patterns.scalar(value) == 1 for value in node.inputs)


def _are_within(facts: Facts, unit: int, proven: Proven, half: Half) -> bool:
    """Whether half holds what a unit reads, and what its readers make, which is suspect no more.

    A factor of at most 1 makes nothing larger; other outcomes may be as large as half holds.
    """
    graph = facts.graph
    read = [value for use in graph.units[unit].uses if (value := value_of(use)) is not None]
    moved = reach([unit], lambda at: graph.successors[at], lambda at: _moves(graph.units[at].node))
    after = {reader for at in (unit, *moved) for reader in graph.successors[at]}
    made = [value for reader in after for value in graph.units[reader].defs]
    return all(proven.of(value).most <= half.largest / HEADROOM for value in (*read, *made))


def _moves(node: ir.Node) -> bool:
    return effective_op(node) in MOVERS


_Changing = set[ir.Value | None]
_Limit = Callable[[ir.Node, Half, _Changing], "tuple[ir.Value | None, float]"]
"""The value of a node that must not exceed a limit, and that limit."""


def _exponent(node: ir.Node, half: Half, changing: _Changing) -> tuple[ir.Value | None, float]:
    """0, up to which no relative error of the argument counts, or where the result ends of stored values."""
    value = node.inputs[0]
    return value, 0.0 if value in changing else math.log(half.largest / HEADROOM)


def _base(node: ir.Node, _half: Half, _changing: _Changing) -> tuple[ir.Value | None, float]:
    exponent = 2.0 if node.op_type == "Mul" else patterns.scalar(node.inputs[1])
    least, most = _DEGREES
    known = exponent is not None and least <= exponent <= most
    return (node.inputs[0], _POWER ** (1 / exponent)) if known and exponent is not None else (None, 0.0)


def _total(node: ir.Node, half: Half, _changing: _Changing) -> tuple[ir.Value | None, float]:
    return node.outputs[0], half.largest / HEADROOM


_LIMITS: Mapping[str, _Limit] = {"Exp": _exponent, "Mul": _base, "Pow": _base, "ReduceSum": _total}
