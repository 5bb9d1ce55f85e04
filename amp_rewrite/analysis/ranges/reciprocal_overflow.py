"""Small divisors whose quotient overflows in half."""

from __future__ import annotations

from amp_rewrite.analysis.operators import effective_op
from amp_rewrite.analysis.propagation import UnitUse, propagate, uses_of
from amp_rewrite.analysis.ranges.constant import NONE, Constant, Context, Findings
from amp_rewrite.analysis.ranges.epsilons import CARRY_EPSILON
from amp_rewrite.model import patterns
from amp_rewrite.policy.evidence import Evidence, Reason

_CARRY_BOUND = CARRY_EPSILON - {"Mul", "Sub"}
_TINY = 1e-300
"""Less than what any quotient needs to overflow."""


def find(constant: Constant, context: Context) -> Findings:
    """The units on any path from a constant to a division of a stored number, where the constant is the lower
    bound of the divisor and the quotient overflows, and the consumers of the quotient.
    """
    bound, graph = constant.fit.low, context.graph
    if not 0 < bound == constant.fit.high or not _may_overflow(bound, context):
        return NONE

    def after(use: UnitUse) -> float | None:
        node, operator = context.node(use.unit), effective_op(context.node(use.unit))
        if not _may_overflow(use.carried, context):
            return None
        if patterns.square_of(node) is not None:
            return max(use.carried * use.carried, _TINY) if use.port == 0 else None
        if operator not in _CARRY_BOUND:
            return None
        return use.carried**0.5 if operator == "Sqrt" else use.carried

    found = propagate(graph, [use._replace(carried=bound) for use in constant.uses], after)
    ends = [u for u in found.uses if _dividend(u, context) > _divisor(u, context) * context.half.largest]
    marked = [use.unit for use in found.on_paths_to(ends)]
    readers = [use.unit for end in ends for use in uses_of(graph, end.unit)]
    return dict.fromkeys((*marked, *readers), _evidence(constant, ends, context)) if ends else NONE


def _may_overflow(least: float, context: Context) -> bool:
    """Whether any stored dividend over this divisor, or over a power or a root of it, overflows."""
    return min(least, 1.0) ** context.highest_power * context.half.largest < context.largest_dividend


def _dividend(use: UnitUse, context: Context) -> float:
    """The largest magnitude of the dividend at a use of a divisor; 0 if it is unknown."""
    node = context.node(use.unit)
    if node.op_type == "Reciprocal" or _degree(use, context) <= -1:
        return 1.0
    dividend = node.inputs[0] if node.op_type == "Div" and use.port == 1 else None
    return context.dividends.get(dividend, 0.0) if dividend is not None else 0.0


def _divisor(use: UnitUse, context: Context) -> float:
    """The least divisor at a use: the bound, or its power."""
    degree = _degree(use, context)
    return max(min(use.carried, 1.0) ** -degree, _TINY) if degree <= -1 else use.carried


def _degree(use: UnitUse, context: Context) -> float:
    """The exponent of a power; 0 where it is no stored number, or the node no power."""
    node = context.node(use.unit)
    is_base = patterns.is_default(node, "Pow") and use.port == 0
    return (patterns.scalar(node.inputs[1]) or 0.0) if is_base else 0.0


def _evidence(constant: Constant, ends: list[UnitUse], context: Context) -> Evidence:
    """The dividend and the least divisor of the largest quotient."""
    quotients = [(_dividend(end, context), _divisor(end, context)) for end in ends]
    dividend, divisor = max(quotients, key=lambda quotient: quotient[0] / quotient[1])
    return constant.evidence(Reason.RECIPROCAL_OVERFLOW, context.half, dividend, divisor)
