"""A number past the integers that half has absorbs the fractions of what it is added to."""

from __future__ import annotations

import math

from amp_rewrite.analysis.ranges.constant import NONE, Constant, Context, Findings
from amp_rewrite.policy.evidence import Reason

_SUMS = frozenset(("Add", "Sub", "Sum"))


def find(constant: Constant, context: Context) -> Findings:
    """The sums with a constant of which all numbers have no fractions in half."""
    fit, half = constant.fit, context.half
    least = max(fit.low, -fit.high)
    if fit.overflowing or least < half.integers:
        return NONE
    step = 2.0 ** (math.floor(math.log2(least)) + 1) / half.integers
    evidence = constant.evidence(Reason.ABSORPTION, half, least, step)
    return {use.unit: evidence for use in constant.uses if context.node(use.unit).op_type in _SUMS}
