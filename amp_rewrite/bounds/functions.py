"""Rules for functions of single elements, and for what is like them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.bounds import stored_bounds
from amp_rewrite.bounds.bound import ELEMENTWISE, UNKNOWN, Bound, interval, loosened, symmetric, widened
from amp_rewrite.bounds.elementwise import SWISH, dip, reciprocal, with_norms
from amp_rewrite.bounds.site import Rule, Site


def _within(low: float, high: float) -> Rule:
    """Always in this interval."""
    return lambda _: widened(low, high)


def _shrinking(image: Callable[[float, float, Site], tuple[float, float]]) -> Rule:
    """A function with |f(x)| <= |x|: norms do not grow."""

    def rule(site: Site) -> Bound:
        a = site.bound(0)
        return with_norms(interval(*image(a.low, a.high, site)), site.norms(0))

    return rule


def _rising(function: Callable[[float], float]) -> Rule:
    """A function that never falls, and that is computed with a relative error."""
    return lambda site: widened(function(site.bound(0).low), function(site.bound(0).high))


_ERROR = 2.0**-22
"""The error of functions that runtimes approximate in an interval: four times float32's roundoff below 1."""


def _approximated(function: Callable[[float], float]) -> Callable[[float, float, Site], tuple[float, float]]:
    """A function that never falls: the sign of its outcome is right, and all else up to an error."""

    def image(low: float, high: float, _: Site) -> tuple[float, float]:
        found = widened(function(low), function(high))
        loose = loosened(found, _ERROR)
        return max(loose.low, 0.0) if low >= 0 else loose.low, min(
            loose.high, 0.0
        ) if high <= 0 else loose.high

    return image


def _dip(least: float) -> Callable[[float, float, Site], tuple[float, float]]:
    """x times a gate of x in [0, 1]: at most x above 0, and not below -`least`."""
    return lambda low, high, _: (dip(low, least), max(high, 0.0))


def _absolute(low: float, high: float, _: Site) -> tuple[float, float]:
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return (low if low == _LEAST_INT64 else least), max(-low, high)


_LEAST_INT64 = -(2.0**63)
"""An integer that is its own magnitude; those of narrower types leave their type, and are found to."""


def _leaky(low: float, high: float, site: Site) -> tuple[float, float]:
    slope = site.number("alpha", 0.01)
    return min(low, low * slope if low < 0 else low), max(high, low * slope if low < 0 else high, 0.0)


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _softplus(x: float) -> float:
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(_exp(x))


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _sqrt(site: Site) -> Bound:
    a = site.bound(0)
    return widened(math.sqrt(max(a.low, 0.0)), math.sqrt(max(a.high, 0.0)))


def _elu(site: Site) -> Bound:
    alpha = site.number("alpha", 1.0)
    return widened(min(-alpha, 0.0), max(site.bound(0).high, -alpha, 0.0))


def _logarithm(site: Site) -> Bound:
    a = site.bound(0)
    return loosened(widened(_log(a.low), _log(a.high)), _ERROR)


def _soft_plus(site: Site) -> Bound:
    a = site.bound(0)
    found = widened(_softplus(a.low), _softplus(a.high))
    return interval(max(found.low - _ERROR, 0.0), found.high + _ERROR)


def _whole(site: Site) -> Bound:
    a = site.bound(0)
    return interval(math.floor(a.low) if math.isfinite(a.low) else a.low, _above(a.high))


def _above(high: float) -> float:
    return math.ceil(high) if math.isfinite(high) else high


def _clip(site: Site) -> Bound:
    a = site.bound(0)
    least = site.bound(1) if site.has(1) else _number(site.number("min", -math.inf))
    most = site.bound(2) if site.has(2) else _number(site.number("max", math.inf))
    found = interval(min(max(a.low, least.low), most.low), min(max(a.high, least.high), most.high))
    return with_norms(found, site.norms(0)) if least.high <= 0 <= most.low else found


def _number(given: float) -> Bound:
    return Bound(given, given)


def _cast(site: Site) -> Bound:
    """Exact to wider types; to integers towards 0, and anything where it does not fit."""
    to, a = ir.DataType(site.integer("to", int(ir.DataType.FLOAT))), site.bound(0)
    if to in _ERRORS:
        relative, absolute = _ERRORS[to]
        return loosened(widened(a.low, a.high, 1 + relative), absolute) if a.most < _FLOAT16 else UNKNOWN
    if to in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return with_norms(widened(a.low, a.high), a.norms)._replace(sums=a.sums * ELEMENTWISE)
    limits = stored_bounds.of_type(to)
    fits = limits.low <= a.low and a.high <= limits.high and to != ir.DataType.BOOL
    return a._replace(norms=(), sums=math.inf) if fits else limits


_ERRORS = {ir.DataType.FLOAT16: (2**-10, 2**-24), ir.DataType.BFLOAT16: (2**-7, 0.0)}
"""Twice the unit roundoff, and what float16 flushes to 0; narrower types are not bounded."""
_FLOAT16 = 60_000.0


def _softmax(site: Site) -> Bound:
    """Numbers of at least 0 whose sum along an axis is 1: their norm is at most 1."""
    out = site.out()
    axis = site.integer("axis", -1)
    along = -axis if axis < 0 else (len(out) - axis if out is not None else 0)
    found = interval(0.0, 1 + 2**-8)
    if along < 1:
        return found
    norms = [math.inf] * (along - 1) + [1 + 2**-8]
    return with_norms(found, norms)._replace(sums=1 + 2**-8 if along == 1 else math.inf)


def _log_softmax(_: Site) -> Bound:
    return interval(-math.inf, 2**-8)


_IDENTITY = _shrinking(lambda low, high, _: (low, high))

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Sin", "Cos", "Sign"), _within(-1.0, 1.0)),
    **dict.fromkeys(("Hardmax", "Sigmoid", "HardSigmoid"), _within(0.0, 1.0)),
    **dict.fromkeys(("Ceil", "Floor", "Round"), _whole),
    "Abs": _shrinking(_absolute),
    "Asinh": _shrinking(_approximated(math.asinh)),
    "Atan": _shrinking(_approximated(math.atan)),
    "Cast": _cast,
    "Clip": _clip,
    "Elu": _elu,
    "Erf": lambda site: interval(*_ERF(site.bound(0).low, site.bound(0).high, site)),
    "Exp": _rising(_exp),
    "Gelu": _shrinking(_dip(0.1701)),
    "HardSwish": _shrinking(_dip(0.375)),
    "LeakyRelu": lambda site: _LEAKY(site) if 0 <= site.number("alpha", 0.01) <= 1 else UNKNOWN,
    "Log": _logarithm,
    "LogSoftmax": _log_softmax,
    "Mish": _shrinking(_dip(0.309)),
    "Neg": _shrinking(lambda low, high, _: (-high, -low)),
    "Reciprocal": lambda site: reciprocal(site.bound(0)),
    "Relu": _shrinking(lambda low, high, _: (max(low, 0.0), max(high, 0.0))),
    "Softmax": _softmax,
    "Softplus": _soft_plus,
    "Softsign": _shrinking(
        _approximated(lambda x: math.copysign(1.0, x) if math.isinf(x) else x / (1 + abs(x)))
    ),
    "Sqrt": _sqrt,
    "Swish": lambda site: _SWISH(site) if site.number("alpha", 1.0) == 1 else symmetric(site.bound(0).most),
    "Tanh": _shrinking(_approximated(math.tanh)),
}
_ERF = _approximated(math.erf)
_LEAKY = _shrinking(_leaky)
_SWISH = _shrinking(_dip(SWISH))
