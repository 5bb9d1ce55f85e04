"""Absorption: a large constant in half absorbs the fractional part of what it is added to."""

from __future__ import annotations

import math

from amp_rewrite.analysis.ranges.constant import NONE, Constant, Context, Findings
from amp_rewrite.policy.evidence import Reason

_SUMS = frozenset(("Add", "Sub", "Sum"))


def find(constant: Constant, context: Context) -> Findings:
    """The sums with a constant so large that half has no fractions there."""
    fit, half = constant.fit, context.half
    least = max(fit.low, -fit.high)
    if fit.overflowing or least < half.integers:
        return NONE
    step = 2.0 ** (math.floor(math.log2(least)) + 1) / half.integers
    evidence = constant.evidence(Reason.ABSORPTION, half, least, step)
    return {use.unit: evidence for use in constant.uses if context.node(use.unit).op_type in _SUMS}
