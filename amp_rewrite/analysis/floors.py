"""Stored numbers that half flushes to zero or rounds to a few steps, where that breaks a division.

    x / (y + 1e-12)               an epsilon that becomes 0: rows of zeros give NaN
    QuantizeLinear(x, 1e-7)       a scale with a large rounding error

What is between the number and the division is float32. Random inputs have no rows of zeros, so that no
comparison would show it.
"""

from __future__ import annotations

import numpy as np

from amp_rewrite.analysis.constant import NONE, Constant, Context, Findings
from amp_rewrite.analysis.propagation import UnitUse, propagate
from amp_rewrite.model.patterns import DEQUANTIZE, QUANTIZE, effective_op
from amp_rewrite.numerics import rounding
from amp_rewrite.operators import catalogue
from amp_rewrite.operators.catalogue import having, moving
from amp_rewrite.operators.record import Move, Role, Trait
from amp_rewrite.policy.evidence import Reason

_CARRY_ZERO = moving(*Move) - {"Cast"} | having(Trait.ADDS | Trait.KEEPS_ZERO)
_DIVIDES = (Role.DIVISOR, Role.LOGARITHM, Role.BASE)


def is_floor_of_norm(constant: Constant, context: Context) -> bool:
    """Return whether a constant that half flushes to zero is the lower bound of norms in half, and no more.

    Half's least number bounds them as well: a norm that is smaller is that of zeros.
    """
    idioms = context.graph.spelled

    def bounds(use: UnitUse) -> bool:
        operator, idiom = context.node(use.unit).op_type, idioms.get(use.unit)
        is_bound = operator == "Max" or (operator, use.port) == ("Clip", 1)
        return is_bound and idiom is not None and idiom.has_one_type

    return constant.fit.flushed == constant.size and constant.fit.low > 0 and all(map(bounds, constant.uses))


def find(constant: Constant, context: Context) -> Findings:
    """Return the units on any path from a constant that half flushes to zero to a division by it, and the
    quantisations with a scale that is subnormal and inexact in half.

    A constant that is flushed only in part is not followed: only a division by itself counts.
    """
    fit, half = constant.fit, context.half
    if not fit.flushed:
        return _inexact_scale(constant, context)
    is_tiny = fit.low * fit.high > 0 and fit.magnitude < half.smallest

    def after(use: UnitUse) -> float | None:
        return 0.0 if is_tiny and effective_op(context.node(use.unit)) in _CARRY_ZERO else None

    def divides(use: UnitUse) -> bool:
        record = catalogue.find("", effective_op(context.node(use.unit)))
        return record.roles.get(use.port) in _DIVIDES

    paths = propagate(context.graph, constant.uses, after)
    ends = [use for use in paths.uses if divides(use)]
    text = ", and is part of a divisor or a logarithm"
    evidence = constant.evidence(Reason.ROUNDED, half, fit.high if is_tiny else None, 0.0, text)
    return {use.unit: evidence for use in paths.on_paths_to(ends)}


def _inexact_scale(constant: Constant, context: Context) -> Findings:
    fit, half = constant.fit, context.half
    if fit.exact or not 0 < fit.low < half.least_normal:
        return NONE
    becomes = float(rounding.convert(np.array([fit.low], np.float32), half).astype(np.float32)[0])
    if abs(becomes - fit.low) <= fit.low * _ROUNDOFFS / half.integers:
        return NONE
    evidence = constant.evidence(Reason.ROUNDED, half, fit.low, becomes)
    scales = (use.unit for use in constant.uses if use.port == 1)
    return {u: evidence for u in scales if context.node(u).op_type in (DEQUANTIZE, QUANTIZE)}


_ROUNDOFFS = 2.0
"""Limit of the relative error of a scale, in unit roundoffs (1 over half's integer bound): a normal number
loses at most one, so that only subnormal ones exceed it.
"""
