"""Rules for arithmetic on elements: sums and products of intervals, and of norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from amp_rewrite.bounds import stored_bounds
from amp_rewrite.bounds.bound import (
    ELEMENTWISE,
    LEAST,
    MOST,
    UNKNOWN,
    Bound,
    hull,
    interval,
    loosened,
    product,
    summed,
    symmetric,
    times,
    widened,
)
from amp_rewrite.bounds.site import Rule, Site, are_same, exact_producer

SWISH = 0.2785
"""The largest magnitude of negative values of x * sigmoid(x)."""
GATE_ERROR = 2.0**-22
"""The absolute error of a computed gate: four times float32's roundoff."""


def with_norms(bound: Bound, norms: Iterable[float]) -> Bound:
    """Return the bound with these norms, rounded up, and elements clamped to the least of them.

    A norm that overflows float32 is no bound, as elements may be infinite; trailing ones are dropped.
    """
    norm_bounds = [_upwards(norm) for norm in norms]
    while norm_bounds and not norm_bounds[-1] < math.inf:
        norm_bounds.pop()
    if not norm_bounds:
        return bound
    least = min(norm_bounds)
    return Bound(max(bound.low, -least), min(bound.high, least), tuple(norm_bounds), bound.sums)


def _upwards(norm: float) -> float:
    if norm == 0:
        return 0.0
    return max(norm * ELEMENTWISE, LEAST) if norm < MOST else math.inf


def norms_of(site: Site, along: Callable[[int, int | str | None], float]) -> list[float]:
    """Return `along` of every axis of the output: of its number, counted from the end, and its size."""
    out = site.out()
    return [] if out is None else [along(axis, out[-axis]) for axis in range(1, len(out) + 1)]


def _add(site: Site) -> Bound:
    a, b = site.bound(0), site.bound(1)
    sum_range = widened(a.low + b.low, a.high + b.high)
    return with_norms(
        sum_range, norms_of(site, lambda axis, size: site.spread(0, axis, size) + site.spread(1, axis, size))
    )


def _subtract(site: Site) -> Bound:
    a, b = site.bound(0), site.bound(1)
    difference = widened(a.low - b.high, a.high - b.low)
    reduction = exact_producer(site.input(1), site.types, "ReduceMean", "ReduceMax")
    if reduction is not None and _is_of(reduction, site):
        if reduction.op_type == "ReduceMax":
            return interval(difference.low, 0.0)
        return with_norms(difference, _centred_norms(site, reduction))
    return with_norms(
        difference, norms_of(site, lambda axis, size: site.spread(0, axis, size) + site.spread(1, axis, size))
    )


def _is_of(reduction: ir.Node, site: Site) -> bool:
    """Whether a reduction is of the first input, and keeps its axes."""
    same = are_same(reduction.inputs[0], site.input(0), site.types)
    return same and reduction.attributes.get_int("keepdims", 1) == 1


def _centred_norms(site: Site, reduction: ir.Node) -> list[float]:
    """Return the norms of centred data: along the single axis of the mean they do not grow."""
    axes = site.at(reduction).axes()
    rank = site.rank(0)
    if axes is None or len(axes) != 1 or not rank:
        return []
    along = -axes[0] if axes[0] < 0 else rank - axes[0]
    return [site.norm(0, axis) * summed(None) if axis == along else math.inf for axis in range(1, rank + 1)]


def _multiply(site: Site) -> Bound:
    norm_bound = site.normalised()
    if norm_bound is not None:
        return norm_bound
    a, b = site.bound(0), site.bound(1)
    if are_same(site.input(0), site.input(1), site.types):
        return _square(a)
    bound = product(a, b)
    gate_input = a if _is_gate(site.input(1), site.input(0)) else b if _is_gate(*site.node.inputs) else None
    if gate_input is not None:
        bound = interval(max(bound.low, dip(gate_input.low, SWISH)), bound.high)
    bound = with_norms(bound, norms_of(site, lambda axis, size: _product_norm(site, axis, size)))
    return bound._replace(sums=_weighted_sums(site))


def _square(a: Bound) -> Bound:
    least = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return widened(times(least, least), times(a.most, a.most))


def _is_gate(gate: ir.Value | None, data: ir.Value | None) -> bool:
    """Whether a value is the sigmoid of the data."""
    node = gate.producer() if gate is not None else None
    return node is not None and not node.domain and node.op_type == "Sigmoid" and node.inputs[0] is data


def dip(low: float, least: float) -> float:
    """Return the minimum of x times its gate for x >= `low`, where the minimum over all x is -`least`."""
    return max(min(low, 0.0), -least * ELEMENTWISE + min(low, 0.0) * GATE_ERROR)


def _product_norm(site: Site, axis: int, size: int | str | None) -> float:
    return min(
        times(site.spread(0, axis, size), site.bound(1).most),
        times(site.bound(0).most, site.spread(1, axis, size)),
    )


def _weighted_sums(site: Site) -> float:
    """Return the bound of the row sums after a product with non-negative numbers."""
    pairs = ((site.sums(0), site.bound(1)), (site.sums(1), site.bound(0)))
    return min((times(sums, b.high) * ELEMENTWISE for sums, b in pairs if b.low >= 0), default=math.inf)


def _divide(site: Site) -> Bound:
    norm_bound = site.normalised()
    if norm_bound is not None:
        return norm_bound
    inverse = reciprocal(site.bound(1))
    quotient = product(site.bound(0), inverse)
    return with_norms(
        quotient, norms_of(site, lambda axis, size: times(site.spread(0, axis, size), inverse.most))
    )


def reciprocal(a: Bound) -> Bound:
    """Return the interval of 1 / x; UNKNOWN if x may be 0, of either sign."""
    return widened(1 / a.high, 1 / a.low) if a.low > 0 or a.high < 0 else UNKNOWN


def _power(site: Site) -> Bound:
    exponents = site.numbers(1)
    a = site.bound(0)
    if exponents is None or len(exponents) != 1:
        return UNKNOWN
    exponent = exponents[0]
    if exponent == 2:
        return _square(a)
    if exponent > 0 and exponent == int(exponent) and int(exponent) % 2:
        return widened(_raise_to(a.low, exponent), _raise_to(a.high, exponent))
    low = _raise_to(max(a.low, 0.0), exponent)
    high = _raise_to(a.most if exponent == int(exponent) else max(a.high, 0.0), exponent)
    if exponent >= 0:
        return widened(low if a.low >= 0 else 0.0, high)
    return widened(0.0, low) if a.low > 0 else UNKNOWN


def _raise_to(base: float, exponent: float) -> float:
    if math.isinf(base):
        return 0.0 if exponent < 0 else base
    try:
        return float(base**exponent)
    except OverflowError:
        return math.copysign(math.inf, base)
    except ZeroDivisionError:
        return math.inf


def _sum(site: Site) -> Bound:
    return total(*site.bounds)


def total(*bounds: Bound) -> Bound:
    """Return the interval of a sum in any order; from three terms on, the error is relative to magnitudes."""
    sum_range = widened(sum(b.low for b in bounds), sum(b.high for b in bounds))
    error = summed(len(bounds)) - 1
    return sum_range if len(bounds) < 3 else loosened(sum_range, times(sum(b.most for b in bounds), error))


def _mean(site: Site) -> Bound:
    union = hull(*site.bounds)
    return loosened(union, times(union.most, summed(len(site.bounds)) - 1))


def _modulo(site: Site) -> Bound:
    return symmetric(site.bound(1).most)


RULES: Mapping[str, Rule] = {
    "Add": _add,
    "Div": _divide,
    "Mean": _mean,
    "Mod": _modulo,
    "Mul": _multiply,
    "Pow": _power,
    "Sub": _subtract,
    "Sum": _sum,
}


# Rules for element-wise functions, and similar operators.


def _within(low: float, high: float) -> Rule:
    """Return the rule of a constant interval."""
    return lambda _: widened(low, high)


def _shrinking(image: Callable[[float, float, Site], tuple[float, float]]) -> Rule:
    """Return the rule of a function with |f(x)| <= |x|: norms do not grow."""

    def rule(site: Site) -> Bound:
        a = site.bound(0)
        return with_norms(interval(*image(a.low, a.high, site)), site.norms(0))

    return rule


def _rising(function: Callable[[float], float]) -> Rule:
    """Return the rule of a monotonic function that is computed with a relative error."""
    return lambda site: widened(function(site.bound(0).low), function(site.bound(0).high))


_ERROR = 2.0**-22
"""The absolute error of functions that runtimes approximate: four times float32's roundoff below 1."""


def _approximated(function: Callable[[float], float]) -> Callable[[float, float, Site], tuple[float, float]]:
    """Return the image of a monotonic function computed with the right sign and an absolute error."""

    def image(low: float, high: float, _: Site) -> tuple[float, float]:
        image_range = widened(function(low), function(high))
        loose = loosened(image_range, _ERROR)
        return max(loose.low, 0.0) if low >= 0 else loose.low, min(
            loose.high, 0.0
        ) if high <= 0 else loose.high

    return image


def _dip(least: float) -> Callable[[float, float, Site], tuple[float, float]]:
    """Return the image of x times a gate of x in [0, 1]: at most x above 0, and at least -`least`."""
    return lambda low, high, _: (dip(low, least), max(high, 0.0))


def _absolute(low: float, high: float, _: Site) -> tuple[float, float]:
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return (low if low == _LEAST_INT64 else least), max(-low, high)


_LEAST_INT64 = -(2.0**63)
"""The integer whose Abs overflows to itself; in narrower types the overflow shows in the interval."""


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
    image_range = widened(_softplus(a.low), _softplus(a.high))
    return interval(max(image_range.low - _ERROR, 0.0), image_range.high + _ERROR)


def _whole(site: Site) -> Bound:
    a = site.bound(0)
    return interval(math.floor(a.low) if math.isfinite(a.low) else a.low, _above(a.high))


def _above(high: float) -> float:
    return math.ceil(high) if math.isfinite(high) else high


def _clip(site: Site) -> Bound:
    a = site.bound(0)
    least = site.bound(1) if site.has(1) else _number(site.number("min", -math.inf))
    most = site.bound(2) if site.has(2) else _number(site.number("max", math.inf))
    bound = interval(min(max(a.low, least.low), most.low), min(max(a.high, least.high), most.high))
    return with_norms(bound, site.norms(0)) if least.high <= 0 <= most.low else bound


def _number(number: float) -> Bound:
    return Bound(number, number)


def _cast(site: Site) -> Bound:
    """Bound a Cast: exact to wider types; to integers rounded towards 0, or any number on overflow."""
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
"""Twice the unit roundoff, and float16's flush to 0; casts to narrower types are not bounded."""
_FLOAT16 = 60_000.0


def _softmax(site: Site) -> Bound:
    """Bound non-negative numbers whose sum along an axis is 1: their norm is at most 1."""
    out = site.out()
    axis = site.integer("axis", -1)
    along = -axis if axis < 0 else (len(out) - axis if out is not None else 0)
    bound = interval(0.0, 1 + 2**-8)
    if along < 1:
        return bound
    norms = [math.inf] * (along - 1) + [1 + 2**-8]
    return with_norms(bound, norms)._replace(sums=1 + 2**-8 if along == 1 else math.inf)


def _log_softmax(_: Site) -> Bound:
    return interval(-math.inf, 2**-8)


_IDENTITY = _shrinking(lambda low, high, _: (low, high))

FUNCTION_RULES: Mapping[str, Rule] = {
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


# Rules for operators that take elements of their inputs: Max, Min, Where.


def _largest(site: Site) -> Bound:
    bounds = site.bounds
    return Bound(max(b.low for b in bounds), max(b.high for b in bounds))


def _least(site: Site) -> Bound:
    bounds = site.bounds
    return Bound(min(b.low for b in bounds), min(b.high for b in bounds))


def _select(site: Site) -> Bound:
    a, b = _branch_bound(site, 1), _branch_bound(site, 2)
    union = with_norms(
        hull(a, b),
        norms_of(site, lambda axis, size: math.hypot(site.spread(1, axis, size), site.spread(2, axis, size))),
    )
    sums = [site.sums(port) for port, other in ((1, b), (2, a)) if other.low == other.high == 0]
    return union._replace(sums=min(sums, default=math.inf))


_COMPARED = {"Greater": True, "GreaterOrEqual": True, "Less": False, "LessOrEqual": False}


def _branch_bound(site: Site, port: int) -> Bound:
    """Return the bound of a branch of Where; if a comparison of it is the condition, clamped to its limit."""
    a, node = site.bound(port), exact_producer(site.input(0), site.types, *_COMPARED)
    if node is None or not are_same(node.inputs[0], site.input(port), site.types):
        return a
    limit = site.at(node).bound(1)
    if _COMPARED[node.op_type] == (port == 1):
        return Bound(max(a.low, limit.low), a.high)
    return Bound(a.low, min(a.high, limit.high))


CHOOSING_RULES: Mapping[str, Rule] = {"Max": _largest, "Min": _least, "Where": _select}
