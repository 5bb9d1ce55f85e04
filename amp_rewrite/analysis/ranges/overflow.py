"""Overflow: constants outside the range of half."""

from __future__ import annotations

from collections.abc import Iterable

from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.propagation import UnitUse, reach
from amp_rewrite.analysis.ranges.constant import Constant, Context, Findings
from amp_rewrite.policy.evidence import Evidence, Reason

CARRY_HUGE = MOVERS | {"Add", "Neg", "Sub"}


def find(constant: Constant, context: Context) -> Findings:
    """The units that read a constant that overflows, or values that are as large because of it."""
    readers = [use.unit for use in harmed(constant, context)]

    def edges(unit: int) -> Iterable[int]:
        carries = effective_op(context.node(unit)) in CARRY_HUGE
        return context.graph.successors[unit] if carries else ()

    found = reach(readers, edges, lambda _: True)
    return dict.fromkeys((*readers, *found), evidence(constant, context))


def evidence(constant: Constant, context: Context) -> Evidence:
    """Which number of a constant is too large, and what the limit is."""
    fit, half = constant.fit, context.half
    worst = fit.low if -fit.low > fit.high else fit.high
    return constant.evidence(Reason.OVERFLOW, half, worst, half.largest)


def harmed(constant: Constant, context: Context) -> list[UnitUse]:
    """The uses of a constant that overflows, except those for which infinity serves as well."""
    return [use for use in constant.uses if not _bounds(use, constant, context)]


def _bounds(use: UnitUse, constant: Constant, context: Context) -> bool:
    """Whether infinity would bound other values as well, as in Max(x, -3.4e38)."""
    operator, largest = context.node(use.unit).op_type, context.half.largest
    below = operator == "Max" or (operator == "Clip" and use.port == 1)
    above = operator == "Min" or (operator == "Clip" and use.port == 2)
    return (below and constant.fit.high < -largest) or (above and constant.fit.low > largest)
