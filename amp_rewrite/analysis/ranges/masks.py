"""Masks: huge negative fills before a softmax, for which the lowest number of half serves as well."""

from __future__ import annotations

from amp_rewrite.analysis.operators import effective_op
from amp_rewrite.analysis.propagation import UnitUse, propagate
from amp_rewrite.analysis.ranges import overflow
from amp_rewrite.analysis.ranges.constant import Constant, Context

_SOFTMAX = frozenset(("Softmax", "LogSoftmax", "Attention", "MultiHeadAttention", "GroupQueryAttention"))
_COMPARE = frozenset("Equal Greater GreaterOrEqual Less LessOrEqual IsInf IsNaN".split())
_READ_NO_ELEMENT = frozenset(("Shape", "Size"))
_CARRY_MASK = overflow.CARRY_HUGE | {"Div", "Mul", "Sum"}
_AS_THE_MASK_SAYS = 0
"""The sign after a product with 0 and 1, or 0 and -1: not positive, by the design of the model."""


def find(constant: Constant, context: Context) -> tuple[int, ...]:
    """The units on the paths of a mask to a softmax; none if it has other uses, or is positive there."""
    fit, largest = constant.fit, context.half.largest
    if constant.value in context.leaving or (fit.low < -largest and fit.high > largest):
        return ()
    sign = -1 if fit.low < -largest else 1
    starts = [use._replace(carried=sign) for use in overflow.harmed(constant, context)]
    uses = propagate(context.graph, starts, lambda use: _sign_after(use, context)).uses
    if not all(_masks(use, context) for use in uses):
        return ()
    masking = any(_is_softmax(use, context) for use in uses)
    return tuple(dict.fromkeys(use.unit for use in uses)) if masking else ()


def _masks(use: UnitUse, context: Context) -> bool:
    """Whether this is a valid use of a mask: propagated, compared, asked for its shape, or negative in a
    softmax.
    """
    if _is_softmax(use, context):
        return use.carried <= 0
    return _carries(use, context) or effective_op(context.node(use.unit)) in _COMPARE | _READ_NO_ELEMENT


def _is_softmax(use: UnitUse, context: Context) -> bool:
    spelled = context.graph.spelled.get(use.unit)
    operator = spelled.operator[1] if spelled is not None else effective_op(context.node(use.unit))
    return operator in _SOFTMAX


def _carries(use: UnitUse, context: Context) -> bool:
    operator = effective_op(context.node(use.unit))
    leaves = not context.leaving.isdisjoint(context.graph.units[use.unit].defs)
    return operator in _CARRY_MASK and not leaves and (operator, use.port) != ("Div", 1)


def _sign_after(use: UnitUse, context: Context) -> float | None:
    """-1, +1 or _AS_THE_MASK_SAYS; None if the unit does not propagate a mask."""
    if not _carries(use, context) or _is_softmax(use, context):
        return None
    operator = effective_op(context.node(use.unit))
    if operator == "Mul":
        return _AS_THE_MASK_SAYS
    flips = operator == "Neg" or (operator == "Sub" and use.port == 1)
    return -use.carried if flips else use.carried
