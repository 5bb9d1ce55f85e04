"""The interval of an operator's first output, from the intervals of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.bounds.bound import (
    ELEMENTWISE,
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
from amp_rewrite.bounds.site import Rule, Site, of_type
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_facts.operators import EXTREMES, REARRANGES, SELECTS

ZERO = interval(0.0, 0.0)
UNIT = interval(0.0, 1 + 2**-8)
"""What a softmax makes, rounding included."""
_ERROR = 2.0**-22
"""The absolute error of functions that runtimes approximate: four times float32's roundoff below 1."""


# Arithmetic.


def _subtract(site: Site) -> Bound:
    a, b = site.bound(0), site.bound(1)
    largest = site.producer(1, "ReduceMax")
    keeps = largest is not None and largest.attributes.get_int("keepdims", 1) == 1
    if largest is not None and keeps and site.is_same(largest.inputs[0], site.input(0)):  # x - max(x)
        return interval(a.low - b.high, 0.0)
    return widened(a.low - b.high, a.high - b.low)


def _multiply(site: Site) -> Bound:
    if site.node in site.known.quotients:
        return site.known.quotients[site.node]
    if site.is_same(site.input(0), site.input(1)):
        return square(site.bound(0))
    return product(site.bound(0), site.bound(1))


def square(a: Bound) -> Bound:
    """Return the interval of the squares of elements."""
    least = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return widened(times(least, least), times(a.most, a.most))


def _divide(site: Site) -> Bound:
    if site.node in site.known.quotients:
        return site.known.quotients[site.node]
    return product(site.bound(0), _reciprocal(site.bound(1)))


def _reciprocal(a: Bound) -> Bound:
    """Return the interval of 1 / x; UNKNOWN if x may be 0, of either sign."""
    return widened(1 / a.high, 1 / a.low) if a.low > 0 or a.high < 0 else UNKNOWN


def _power(site: Site) -> Bound:
    exponents, a = site.numbers(1), site.bound(0)
    exponent = exponents[0] if exponents is not None and len(exponents) == 1 else -1.0
    if exponent == 2:
        return square(a)
    if exponent < 0:
        return UNKNOWN
    if exponent == int(exponent) and int(exponent) % 2:
        return widened(_raise_to(a.low, exponent), _raise_to(a.high, exponent))
    most = a.most if exponent == int(exponent) else max(a.high, 0.0)
    return widened(_raise_to(a.low, exponent) if a.low >= 0 else 0.0, _raise_to(most, exponent))


def _raise_to(base: float, exponent: float) -> float:
    try:
        return base if math.isinf(base) and exponent else float(base**exponent)
    except OverflowError:
        return math.copysign(math.inf, base)


def add(*bounds: Bound) -> Bound:
    """Return the interval of a sum in any order, rounded relative to the magnitudes of its terms."""
    total = widened(sum(b.low for b in bounds), sum(b.high for b in bounds))
    error = summed(len(bounds)) - 1 if len(bounds) > 2 else 0.0
    return loosened(total, times(sum(b.most for b in bounds), error))


def _mean(site: Site) -> Bound:
    union = hull(*site.bounds)
    return loosened(union, times(union.most, summed(len(site.bounds)) - 1))


# Functions of single elements.


def _within(low: float, high: float) -> Rule:
    return lambda _: widened(low, high)


def _rising(function: Callable[[float], float], error: float = 0.0) -> Rule:
    """Return the rule of a monotonic function that keeps the sign, with a relative and an absolute error."""

    def rule(site: Site) -> Bound:
        a = site.bound(0)
        image = loosened(widened(function(a.low), function(a.high)), error)
        return interval(
            max(image.low, 0.0) if a.low >= 0 else image.low,
            min(image.high, 0.0) if a.high <= 0 else image.high,
        )

    return rule


def _gated(site: Site) -> Bound:
    """Bound data times a gate of them in [0, 1], or another function between 0 and its argument."""
    a = site.bound(0)
    return interval(min(a.low, 0.0), max(a.high, 0.0))


def _absolute(site: Site) -> Bound:
    a = site.bound(0)
    least = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return interval(a.low if a.low == -(2.0**63) else least, a.most)  # the least int64 overflows to itself


def _leaky(site: Site) -> Bound:
    return _gated(site) if 0 <= site.number("alpha", 0.01) <= 1 else UNKNOWN


def _elu(site: Site) -> Bound:
    alpha = site.number("alpha", 1.0)
    return widened(min(-alpha, 0.0), max(site.bound(0).high, -alpha, 0.0))


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _exponential(site: Site) -> Bound:
    return widened(_exp(site.bound(0).low), _exp(site.bound(0).high))


def _softplus(site: Site) -> Bound:
    a = site.bound(0)
    low, high = (max(x, 0.0) + math.log1p(math.exp(-abs(x))) for x in (a.low, a.high))
    return interval(max(low - _ERROR, 0.0), high * ELEMENTWISE + _ERROR)


def _logarithm(site: Site) -> Bound:
    low, high = (math.log(x) if x > 0 else -math.inf for x in (site.bound(0).low, site.bound(0).high))
    return loosened(widened(low, high), _ERROR)


def _root(site: Site) -> Bound:
    a = site.bound(0)
    return widened(math.sqrt(max(a.low, 0.0)), math.sqrt(max(a.high, 0.0)))


def _whole(site: Site) -> Bound:
    low, high = site.bound(0)
    return interval(
        math.floor(low) if math.isfinite(low) else low, math.ceil(high) if math.isfinite(high) else high
    )


def _clip(site: Site) -> Bound:
    a, least, most = (
        site.bound(0),
        *(
            site.bound(port) if site.has(port) else Bound(number, number)
            for port, number in ((1, site.number("min", -math.inf)), (2, site.number("max", math.inf)))
        ),
    )
    return interval(min(max(a.low, least.low), most.low), min(max(a.high, least.high), most.high))


def _cast(site: Site) -> Bound:
    """Bound a Cast: exact to wider types; to integers rounded towards 0, or any number on overflow."""
    to, a = ir.DataType(site.integer("to", int(ir.DataType.FLOAT))), site.bound(0)
    if to in _CAST_ERRORS:
        relative, absolute = _CAST_ERRORS[to]
        return loosened(widened(a.low, a.high, 1 + relative), absolute) if a.most < _FLOAT16 else UNKNOWN
    if to in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return widened(a.low, a.high)
    limits = of_type(to)
    return a if limits.low <= a.low and a.high <= limits.high and to != ir.DataType.BOOL else limits


_CAST_ERRORS = {ir.DataType.FLOAT16: (2**-10, 2**-24), ir.DataType.BFLOAT16: (2**-7, 0.0)}
"""Twice the unit roundoff, and float16's flush to 0; Casts to narrower types are not bounded."""
_FLOAT16 = 60_000.0


# Movements and choices.


def _same(site: Site) -> Bound:
    return site.bound(0)


def _with_zero(site: Site) -> Bound:
    return hull(site.bound(0), ZERO)


def _dropout(site: Site) -> Bound:
    """Bound Dropout: the identity at inference; in training, surviving elements are scaled up."""
    training = site.numbers(2) if site.has(2) else (0.0,)
    return site.bound(0) if training is not None and not any(training) else UNKNOWN


def _max_pool(site: Site) -> Bound:
    """Keep the interval, unless a window may lie entirely in the padding, where it has no largest element."""
    has_holes = any(size != 1 for size in site.integers("dilations") or ()) or site.integer("ceil_mode", 0)
    is_padded = any(site.integers("pads") or ()) or site.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return UNKNOWN if has_holes and is_padded else site.bound(0)


_COMPARED = {"Greater": True, "GreaterOrEqual": True, "Less": False, "LessOrEqual": False}


def _branch(site: Site, port: int) -> Bound:
    """Return the bound of a branch of Where; if a comparison of it is the condition, clamped to its limit."""
    a, comparison = site.bound(port), site.producer(0, *_COMPARED)
    if comparison is None or not site.is_same(comparison.inputs[0], site.input(port)):
        return a
    limit = site.known.of(comparison.inputs[1])
    if _COMPARED[comparison.op_type] == (port == 1):
        return Bound(max(a.low, limit.low), a.high)
    return Bound(a.low, min(a.high, limit.high))


def _pad(site: Site) -> Bound:
    if site.text("mode", "constant") != "constant":
        return site.bound(0)
    filler = site.bound(2) if site.has(2) else interval(*(site.number("value", 0.0),) * 2)
    return hull(site.bound(0), filler)


def _scatter(site: Site) -> Bound:
    moves = effective_op(site.node) in (site.node.op_type, "Max", "Min")
    return hull(site.bound(0), site.bound(2)) if moves else UNKNOWN


def _fill(site: Site) -> Bound:
    attribute = site.node.attributes.get("value")
    number = float(attribute.as_tensor().numpy().reshape(-1)[0]) if attribute is not None else 0.0
    return interval(number, number)


def _range(site: Site) -> Bound:
    start, limit, step = (site.bound(port) for port in range(3))
    bound = Bound(start.low, max(limit.high, start.high)) if step.low > 0 else hull(start, limit)
    return loosened(bound, bound.most * 2**-20)


def _shape(site: Site) -> Bound:
    sizes = site.dims(0)
    is_static = sizes is not None and all(isinstance(size, int) for size in sizes)
    most = max((size for size in sizes or () if isinstance(size, int)), default=0)
    return interval(0.0, float(most) if is_static else 2.0**63)


def _interpolated(a: Bound) -> Bound:
    """Return the interval of averages: weights whose sum is 1, rounded."""
    return interval(a.low - abs(a.low) * 2**-16, a.high + abs(a.high) * 2**-16)


def _average(site: Site) -> Bound:
    return hull(_interpolated(site.bound(0)), ZERO)


def _resize(site: Site) -> Bound:
    if site.text("mode", "nearest") not in ("nearest", "linear"):
        return UNKNOWN
    outside = interval(*(site.number("extrapolation_value", 0.0),) * 2)
    crops = site.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return hull(_interpolated(site.bound(0)), *([outside] if crops else []))


def _grid_sample(site: Site) -> Bound:
    return _average(site) if site.text("mode", "linear") in ("bilinear", "linear", "nearest") else UNKNOWN


RULES: Mapping[str, Rule] = {
    **dict.fromkeys((REARRANGES | SELECTS | EXTREMES) - {"Cast", "SequenceAt"} | {"GlobalMaxPool"}, _same),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "RoiAlign"), _average),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter"), _scatter),
    **dict.fromkeys(("Sin", "Cos", "Sign"), _within(-1.0, 1.0)),
    **dict.fromkeys(("Hardmax", "Sigmoid", "HardSigmoid"), _within(0.0, 1.0)),
    **dict.fromkeys(("Ceil", "Floor", "Round"), _whole),
    **dict.fromkeys(("Gelu", "HardSwish", "Mish"), _gated),
    "Abs": _absolute,
    "Add": lambda site: add(site.bound(0), site.bound(1)),
    "Asinh": _rising(math.asinh, _ERROR),
    "Atan": _rising(math.atan, _ERROR),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda site: hull(*site.bounds),
    "ConstantOfShape": _fill,
    "Div": _divide,
    "Dropout": _dropout,
    "Elu": _elu,
    "Erf": _rising(math.erf, _ERROR),
    "Exp": _exponential,
    "GridSample": _grid_sample,
    "LeakyRelu": _leaky,
    "Log": _logarithm,
    "LogSoftmax": lambda _: interval(-math.inf, 2**-8),
    "Max": lambda site: Bound(max(b.low for b in site.bounds), max(b.high for b in site.bounds)),
    "MaxPool": _max_pool,
    "Mean": _mean,
    "Min": lambda site: Bound(min(b.low for b in site.bounds), min(b.high for b in site.bounds)),
    "Mod": lambda site: symmetric(site.bound(1).most),
    "Mul": _multiply,
    "Neg": lambda site: interval(-site.bound(0).high, -site.bound(0).low),
    "OneHot": lambda site: site.bound(2),
    "Pad": _pad,
    "Pow": _power,
    "Range": _range,
    "Reciprocal": lambda site: _reciprocal(site.bound(0)),
    "Relu": lambda site: interval(max(site.bound(0).low, 0.0), max(site.bound(0).high, 0.0)),
    "Resize": _resize,
    "Shape": _shape,
    "Size": lambda _: interval(0.0, 2.0**63),
    "Softmax": lambda _: UNIT,
    "Softplus": _softplus,
    "Softsign": _gated,
    "Sqrt": _root,
    "Sub": _subtract,
    "Sum": lambda site: add(*site.bounds),
    "Swish": lambda site: _gated(site) if site.number("alpha", 1.0) >= 0 else symmetric(site.bound(0).most),
    "Tanh": _rising(math.tanh, _ERROR),
    "Trilu": _with_zero,
    "Upsample": lambda site: _interpolated(site.bound(0)),
    "Where": lambda site: hull(_branch(site, 1), _branch(site, 2)),
}
"""The rules by operator."""
