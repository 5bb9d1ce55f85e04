"""Epsilons: constants that keep a divisor from zero, and that half flushes to zero."""

from __future__ import annotations

from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.propagation import UnitUse, propagate
from amp_rewrite.analysis.ranges.constant import NONE, Constant, Context, Findings
from amp_rewrite.policy.evidence import Reason

CARRY_EPSILON = MOVERS | {"Add", "Abs", "Clip", "Mul", "Sqrt", "Sub", "Sum"}
_DIVIDE = {"Div": 1, "Reciprocal": 0, "Log": 0, "Pow": 0}
"""The operators with an input that must not be zero, and that input."""


def find(constant: Constant, context: Context) -> Findings:
    """The units on any path from a constant that half flushes to zero to a division by it.

    A constant that is flushed only in part is not followed: only a division by itself counts.
    """
    fit, half = constant.fit, context.half
    if not fit.flushed:
        return NONE
    tiny = fit.low * fit.high > 0 and fit.magnitude < half.smallest

    def after(use: UnitUse) -> float | None:
        return 0.0 if tiny and effective_op(context.node(use.unit)) in CARRY_EPSILON else None

    found = propagate(context.graph, constant.uses, after)
    ends = [use for use in found.uses if is_fatal(use, context)]
    evidence = constant.evidence(Reason.VANISHING_DIVISOR, half, fit.high if tiny else None)
    return {use.unit: evidence for use in found.on_paths_to(ends)}


def is_fatal(use: UnitUse, context: Context) -> bool:
    """Whether a use must not be zero."""
    return _DIVIDE.get(effective_op(context.node(use.unit))) == use.port
