"""Stored numbers that half rounds to a few steps or to zero, and the effect on a division or a scale.

    x / (y + 1e-12)               an epsilon that becomes 0
    30000 / (y + 0.01)            a bound of a divisor whose quotient overflows
    x * 1e-7                      a factor with a large rounding error
    (x @ w) * 1e6                 with w of about 1e-7, where half has steps of 6e-8

Small weights do no harm where their products stay as small, or are added to something larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.constant import NONE, Constant, Context, Findings
from amp_rewrite.analysis.propagation import UnitUse, propagate, uses_of
from amp_rewrite.model import patterns
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.model.quantised_regions import DEQUANTIZE, QUANTIZE
from amp_rewrite.numerics import rounding
from amp_rewrite.onnx_facts.operators import DIVISORS, MOVERS, PRODUCTS, REARRANGES, SELECTS
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Reason

_CARRY_BOUND = MOVERS | {"Add", "Abs", "Clip", "Sqrt", "Sum"}
_CARRY_ZERO = _CARRY_BOUND | {"Mul", "Sub"}
_TINY = 1e-300
"""Lower bound of divisors: no quotient needs less to overflow."""
_SCALES = ("Div", "Mul", "Pow")
_QUANTISATIONS = (DEQUANTIZE, QUANTIZE)
_ROUNDOFFS = 2.0
"""Limit of the relative error, in unit roundoffs: a normal number loses at most one (1 over half's integer
bound), so that only subnormal ones exceed twice that.
"""
_SCALE = 64.0
"""Least factor that counts as scaling up; weights of layers are smaller."""
_KEEP = REARRANGES | SELECTS | {"Abs", "LeakyRelu", "Neg", "Relu"}
_SUMS = frozenset(("Add", "Sub", "Sum"))
_NORMS = frozenset(("GroupNormalization", "InstanceNormalization", "LayerNormalization"))
_EPSILON = 1e-5
"""Epsilon of a norm that declares none."""
_BIAS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}
"""Input of the bias, by product."""


def is_floor_of_norm(constant: Constant, context: Context) -> bool:
    """Return whether a constant that half flushes to zero is the lower bound of norms in half, and no more.

    Half's least number bounds them as well: a norm that is smaller is that of zeros.
    """
    spelled = context.graph.spelled

    def bounds(use: UnitUse) -> bool:
        operator, idiom = context.node(use.unit).op_type, spelled.get(use.unit)
        is_bound = operator == "Max" or (operator, use.port) == ("Clip", 1)
        return is_bound and idiom is not None and idiom.has_one_type

    return constant.fit.flushed == constant.size and constant.fit.low > 0 and all(map(bounds, constant.uses))


def vanishing_divisor(constant: Constant, context: Context) -> Findings:
    """Return the units on any path from a constant that half flushes to zero to a division by it.

    A constant that is flushed only in part is not followed: only a division by itself counts.
    """
    fit, half = constant.fit, context.half
    if not fit.flushed:
        return NONE
    tiny = fit.low * fit.high > 0 and fit.magnitude < half.smallest

    def after(use: UnitUse) -> float | None:
        return 0.0 if tiny and effective_op(context.node(use.unit)) in _CARRY_ZERO else None

    paths = propagate(context.graph, constant.uses, after)
    ends = [use for use in paths.uses if _divides(use, context)]
    evidence = constant.evidence(
        Reason.ROUNDED, half, fit.high if tiny else None, 0.0, ", and is part of a divisor or a logarithm"
    )
    return {use.unit: evidence for use in paths.on_paths_to(ends)}


def _divides(use: UnitUse, context: Context) -> bool:
    """Return whether a use must not be zero."""
    operator = effective_op(context.node(use.unit))
    return operator != "Sqrt" and DIVISORS.get(operator) == use.port


def large_quotient(constant: Constant, context: Context) -> Findings:
    """Return the units on any path from a constant to a division of a stored number, where the constant is
    the lower bound of the divisor and the quotient overflows, and the consumers of the quotient.
    """
    bound, graph = constant.fit.low, context.graph
    harmless = context.least_harmless_divisor
    if not 0 < bound == constant.fit.high or bound >= harmless:
        return NONE

    def after(use: UnitUse) -> float | None:
        node, operator = context.node(use.unit), effective_op(context.node(use.unit))
        if use.carried >= harmless:
            return None
        if patterns.square_of(node) is not None:
            return max(use.carried * use.carried, _TINY) if use.port == 0 else None
        if operator not in _CARRY_BOUND:
            return None
        return use.carried**0.5 if operator == "Sqrt" else use.carried

    paths = propagate(graph, [use._replace(carried=bound) for use in constant.uses], after)
    quotients = {use: _quotient(use, context) for use in paths.uses}
    ends = {use: each for use, each in quotients.items() if each[0] > each[1] * context.half.largest}
    if not ends:
        return NONE
    marked = [use.unit for use in paths.on_paths_to(ends)]
    readers = [use.unit for end in ends for use in uses_of(graph, end.unit)]
    dividend, divisor = max(ends.values(), key=lambda quotient: quotient[0] / quotient[1])
    evidence = constant.evidence(Reason.QUOTIENT_OVERFLOW, context.half, dividend, divisor)
    return dict.fromkeys((*marked, *readers), evidence)


def _quotient(use: UnitUse, context: Context) -> tuple[float, float]:
    """Return the largest dividend at a use of a divisor, 0 if unknown, and the least divisor."""
    node = context.node(use.unit)
    is_base = patterns.is_default(node, "Pow") and use.port == 0
    degree = (patterns.scalar(node.inputs[1]) or 0.0) if is_base else 0.0
    if degree <= -1:
        return 1.0, max(min(use.carried, 1.0) ** -degree, _TINY)
    if node.op_type == "Reciprocal":
        return 1.0, use.carried
    dividend = node.inputs[0] if node.op_type == "Div" and use.port == 1 else None
    return (context.dividends.get(dividend, 0.0) if dividend is not None else 0.0), use.carried


def inexact_factor(constant: Constant, context: Context) -> Findings:
    """Return the products, quotients and powers with one number that is subnormal and inexact in half, and
    the quantisations with such a scale.
    """
    fit, half = constant.fit, context.half
    if fit.exact or fit.overflowing or not fit.low:
        return NONE
    becomes = float(rounding.convert(np.array([fit.low], np.float32), half).astype(np.float32)[0])
    if abs(becomes - fit.low) <= abs(fit.low) * _ROUNDOFFS / half.integers:
        return NONE
    evidence = constant.evidence(Reason.ROUNDED, half, fit.low, becomes)
    scaling = _SCALES if constant.size == 1 else ()
    operators = ((use, context.node(use.unit).op_type) for use in constant.uses)
    return {
        use.unit: evidence
        for use, operator in operators
        if operator in scaling or (use.port == 1 and operator in _QUANTISATIONS)
    }


def faint_factor(constant: Constant, context: Context) -> Findings:
    """Return the units on any path from a faint factor to the node that scales its product up to half's
    normal numbers.
    """
    fit, half = constant.fit, context.half
    if fit.exact or not 0 < fit.magnitude < half.faint:
        return NONE
    normal = half.least_normal

    def after(use: UnitUse) -> float | None:
        by = _gain(use, context)
        return use.carried * by if by is not None and use.carried * by < normal else None

    paths = propagate(context.graph, [use._replace(carried=fit.magnitude) for use in constant.uses], after)
    ends = [use for use in paths.uses if use.carried * (_gain(use, context) or 0.0) >= normal]
    evidence = constant.evidence(Reason.FAINT_FACTOR, half, fit.magnitude, half.smallest)
    return {use.unit: evidence for use in paths.on_paths_to(ends)}


def _gain(use: UnitUse, context: Context) -> float | None:
    """Return the ratio of a node's output to that input, for other operands of about 1; at least 1, and None
    where a larger operand dominates.
    """
    node = context.node(use.unit)
    operator = effective_op(node)
    others = [value for port, value in enumerate(node.inputs) if port != use.port]
    if operator in _KEEP:
        return 1.0
    if operator in _SUMS:
        return 1.0 if _are_faint(others, context) else None
    if operator in _NORMS and use.port == 0:
        by = max(schema.number(node, "epsilon", _EPSILON), context.half.smallest**2) ** -0.5
        return by if by >= _SCALE else 1.0
    bias = _BIAS.get(operator)
    if use.port == bias or (operator == "Div" and use.port == 1) or operator not in PRODUCTS | {"Div", "Mul"}:
        return None
    if bias is not None and not _are_faint(node.inputs[bias : bias + 1], context):
        return None
    by = math.prod(
        _factor(node.inputs[at], context) for at in range(len(node.inputs)) if at not in (use.port, bias)
    )
    by = 1 / by if operator == "Div" else by
    by *= abs(schema.number(node, "alpha", 1.0)) if operator == "Gemm" else 1.0
    return by if by >= _SCALE else 1.0


def _factor(value: ir.Value | None, context: Context) -> float:
    """Return the largest number of a stored factor; 1 for data."""
    fit = context.fits.get(value) if value is not None else None
    return (fit.magnitude or 1.0) if fit is not None else 1.0


def _are_faint(values: Iterable[ir.Value | None], context: Context) -> bool:
    """Return whether all of these are stored and faint."""
    fits = [context.fits.get(value) for value in values if value is not None]
    return all(fit is not None and fit.magnitude < context.half.faint for fit in fits)
