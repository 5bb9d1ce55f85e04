"""A number past the integers that half has absorbs the fractions of what it is added to."""

from __future__ import annotations

import math

from amp_rewrite.analysis.findings import Finding
from amp_rewrite.analysis.ranges.constant import NONE, Constant, Context, Findings

_SUMS = frozenset(("Add", "Sub", "Sum"))


def find(constant: Constant, context: Context) -> Findings:
    """The sums with a constant of which all numbers have no fractions in half."""
    fit, half = constant.fit, context.half
    least = max(fit.low, -fit.high)
    if fit.overflowing or least < half.integers:
        return NONE
    step = 2.0 ** (math.floor(math.log2(least)) + 1) / half.integers
    what = f"{least:.6g} in {constant.name} swallows what it is added to"
    finding = Finding(f"{what}: {half.name} has steps of {step:g} there")
    return {use.unit: finding for use in constant.uses if context.node(use.unit).op_type in _SUMS}
