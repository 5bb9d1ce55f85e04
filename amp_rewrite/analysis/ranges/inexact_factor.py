"""A scalar factor that is subnormal in half, whose rounding error would scale the whole result."""

from __future__ import annotations

import numpy as np

from amp_rewrite.analysis.ranges.constant import NONE, Constant, Context, Findings
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.evidence import Reason

_SCALES = frozenset(("Div", "Mul", "Pow"))
_ROUNDOFFS = 2.0
"""Of rounding, a normal number loses at most the unit roundoff (1 over half's integer bound), so that only
subnormal ones exceed twice that.
"""


def find(constant: Constant, context: Context) -> Findings:
    """The products, quotients and powers with a single number that is subnormal in half and inexact."""
    fit, half = constant.fit, context.half
    if constant.size != 1 or fit.exact or fit.overflowing or not fit.low:
        return NONE
    rounded = _rounded(fit.low, half)
    if abs(rounded - fit.low) <= abs(fit.low) * _ROUNDOFFS / half.integers:
        return NONE
    evidence = constant.evidence(Reason.INEXACT_FACTOR, half, fit.low, rounded)
    return {use.unit: evidence for use in constant.uses if context.node(use.unit).op_type in _SCALES}


def _rounded(number: float, half: Half) -> float:
    return float(rounding.convert(np.array([number], np.float32), half).astype(np.float32)[0])
