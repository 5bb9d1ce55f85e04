"""Bounds that keep what is left of 1 from zero, and that half rounds to 1.

    Log(c / (1 - c))    with c = Clip(p, 1e-5, 1 - 1e-5)          torch.logit, atanh written out

In half the bound is 1 itself, and the logarithm infinite.
"""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.propagation import UnitUse, propagate, uses_of
from amp_rewrite.analysis.ranges.constant import NONE, Constant, Context, Findings
from amp_rewrite.analysis.ranges.epsilons import CARRY_EPSILON, is_fatal
from amp_rewrite.policy.evidence import Reason

_BOUNDS = frozenset(("Clip", "Max", "Min"))
_NEAR_1, _REST = 1.0, 0.0
"""What a value is: near 1 or -1, or what is left of 1."""
_SATURATE = frozenset(("Erf", "Sigmoid", "Softmax", "Tanh"))


def find(constant: Constant, context: Context) -> Findings:
    """The units on any path from such a bound to a division by the rest, what saturates before the bound, and
    where the quotient overflows its readers.
    """
    bound = constant.fit.magnitude
    rest = 1 - bound
    if constant.size != 1 or not 0 < rest <= 0.5 / context.half.integers:
        return NONE
    starts = [u._replace(carried=_NEAR_1) for u in constant.uses if _operator(u.unit, context) in _BOUNDS]
    found = propagate(context.graph, starts, lambda use: _after(use, context))
    ends = [use for use in found.uses if use.carried == _REST and is_fatal(use, context)]
    units = [use.unit for use in found.on_paths_to(ends)]
    before = [p for u in units for p in context.graph.predecessors[u] if _operator(p, context) in _SATURATE]
    behind = [use.unit for end in ends for use in uses_of(context.graph, end.unit)]
    is_large = rest * context.half.largest < 1
    evidence = constant.evidence(Reason.VANISHING_REST, context.half, bound)
    return dict.fromkeys((*units, *before, *(behind if is_large else ())), evidence)


def _after(use: UnitUse, context: Context) -> float | None:
    operator = _operator(use.unit, context)
    if use.carried == _REST:
        return _REST if operator in CARRY_EPSILON else None
    if operator in ("Add", "Sub"):
        others = (v for port, v in enumerate(context.node(use.unit).inputs) if port != use.port)
        return _REST if any(v is not None and _is_1(context, v) for v in others) else None
    return _NEAR_1 if operator in MOVERS | _BOUNDS | {"Neg"} else None


def _operator(unit: int, context: Context) -> str:
    return effective_op(context.node(unit))


def _is_1(context: Context, value: ir.Value) -> bool:
    """Whether a value is stored as 1 or -1, whatever its shape."""
    fit = context.fits.get(value)
    return fit is not None and fit.low == fit.high and fit.magnitude == 1
