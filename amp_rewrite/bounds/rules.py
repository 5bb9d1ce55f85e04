"""The interval of an operator's first output, from the intervals of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.bounds.bound import (
    ELEMENTWISE,
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
from amp_rewrite.bounds.site import Rule, Site, of_type
from amp_rewrite.model.constants import dims
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_facts.operators import EXTREMES, REARRANGES, RECURRENT, SELECTS

ZERO = interval(0.0, 0.0)
_UNIT = interval(0.0, 1 + 2**-8)
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
        return _square(site.bound(0))
    return product(site.bound(0), site.bound(1))


def _square(a: Bound) -> Bound:
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
        return _square(a)
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


def _sum(*bounds: Bound) -> Bound:
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


# Reductions and norms.


def _reduced_mean(site: Site) -> Bound:
    return widened(*site.bound(0), summed(site.count()))


def _reduced_sum(site: Site) -> Bound:
    return _total(site.bound(0), site.count())


def _total(a: Bound, count: int | None) -> Bound:
    """Return the interval of the sum of so many elements; of an unknown number, only its sign."""
    if count is None:
        return interval(0.0 if a.low >= 0 else -math.inf, 0.0 if a.high <= 0 else math.inf)
    return widened(times(count, a.low), times(count, a.high), summed(count))


def _magnitudes(site: Site) -> Bound:
    return _total(interval(0.0, site.bound(0).most), site.count())


def _squares(site: Site) -> Bound:
    total = _total(_square(site.bound(0)), site.count())
    return interval(0.0, total.high)


def _length(site: Site) -> Bound:
    """Bound the L2 norm; infinite if its square overflows float32."""
    most = _squares(site).high
    return interval(0.0, math.sqrt(most) * ELEMENTWISE if most < MOST else math.inf)


def _log_sum_exp(site: Site) -> Bound:
    count, a = site.count(), site.bound(0)
    if not count:
        return UNKNOWN  # -inf for an empty reduction
    return loosened(widened(a.low, a.high + math.log(count)), summed(count) - 1)


def _running_sum(site: Site) -> Bound:
    shape, axes, a = site.dims(0), site.numbers(1), site.bound(0)
    if not shape or axes is None or not -len(shape) <= axes[0] < len(shape):
        return UNKNOWN
    size = shape[int(axes[0])]
    return hull(_total(a, size if isinstance(size, int) else None), ZERO)


LEAST_EPSILON = 1e-30
"""The least epsilon with which a norm is bounded: squares of numbers below 1e-22 are 0 in float32."""


def _norm(site: Site, count: int | None, gamma: int, beta: int | None, epsilon: float = 1e-5) -> Bound:
    """Bound normalised data by sqrt(n) * gamma + beta, whatever they are."""
    if count is None or site.number("epsilon", epsilon) < LEAST_EPSILON:
        return UNKNOWN
    offset = site.bound(beta).most if beta is not None and site.has(beta) else 0.0
    return symmetric(times(math.sqrt(count) * summed(count), site.bound(gamma).most) + offset)


def _layer_norm(site: Site) -> Bound:
    shape, weight, axis = site.dims(0), site.dims(1), site.integer("axis", -1)
    last = shape[axis:] if shape else ()
    if axis == -1 and weight and weight[-1] != 1 and not (last and isinstance(last[0], int)):
        last = weight[-1:]
    sizes = [size for size in last if isinstance(size, int)]
    return _norm(site, math.prod(sizes) if last and len(sizes) == len(last) else None, 1, 2)


def _channel_norm(site: Site) -> Bound:
    """Bound an InstanceNormalization, or a GroupNormalization."""
    shape, groups = site.dims(0) or (), site.integer("num_groups", 0)
    channels = 1 if not groups else shape[1] if len(shape) > 1 else None
    sizes = [size for size in shape[2:] if isinstance(size, int)]
    if not isinstance(channels, int) or len(shape) < 2 or len(sizes) != len(shape) - 2:
        return UNKNOWN
    return _norm(site, (channels // groups if groups else 1) * math.prod(sizes), 1, 2)


def _fused_norm(gamma: int, beta: int | None) -> Rule:
    """Return the rule of a norm along the last axis, whose size is that of its weight."""

    def rule(site: Site) -> Bound:
        weight = site.dims(gamma)
        count = weight[-1] if weight and isinstance(weight[-1], int) else None
        return _norm(site, count, gamma, beta, 1e-12)

    return rule


def _batch_norm(site: Site) -> Bound:
    """Bound a scale and an offset per channel, also folded as x * f + (bias - mean * f)."""
    scale, bias, mean, variance = (site.bound(port) for port in range(1, 5))
    least = variance.low + site.number("epsilon", 1e-5)
    if site.integer("training_mode", 0) or not variance.low >= 0 or not least:
        return UNKNOWN
    factor, a = scale.most / math.sqrt(least), site.bound(0)
    scaled = product(widened(a.low - mean.high, a.high - mean.low), symmetric(factor))
    whole = widened(scaled.low + bias.low, scaled.high + bias.high)
    return loosened(whole, times(a.most + mean.most, factor) * 2.0**-20)


def _unit_norm(site: Site) -> Bound:
    """Bound the result by 1, or 1.25 for squares so small that float32 rounds them up by a factor of 2."""
    return symmetric(1.25) if site.integer("p", 2) in (1, 2) else UNKNOWN


def _recurrent(site: Site) -> Bound:
    """Bound the outputs by the default activations and the initial state."""
    if "activations" in site.node.attributes:
        return UNKNOWN
    return widened(*hull(interval(-1.0, 1.0), site.bound(5) if site.has(5) else ZERO), 1 + 2**-8)


# Products.


def _weighed(site: Site, data: int, weight: int, rows: int, along: int) -> Bound:
    """Return the bound of data by a stored weight: at most the largest sum of its magnitudes."""
    value = site.input(weight)
    sums = site.known.sum_of(value, rows, along) if value is not None else math.inf
    tensor = site.known.stored(value)
    return symmetric(times(site.bound(data).most, sums) * summed(tensor.size if tensor is not None else None))


def _matmul(site: Site) -> Bound:
    for data, weight in ((0, 1), (1, 0)):
        tensor = site.known.stored(site.input(weight))
        shape = dims(tensor) if tensor is not None else ()
        if len(shape) == 2:
            return _weighed(site, data, weight, shape[0], 0 if weight else 1)
    first, second = site.dims(0), site.dims(1)
    sizes = [first[-1] if first else None, second[-min(len(second), 2)] if second else None]
    count = next((size for size in sizes if isinstance(size, int)), None)
    softmax = site.producer(0, "Softmax")
    if softmax is not None and _is_of_rows(softmax, site):  # attention averages the rows of its values
        return _averages(site.bound(1), count)
    most = times(site.bound(0).most, site.bound(1).most)
    return symmetric(times(most, count) * summed(count) if count is not None else math.inf)


def _averages(values: Bound, count: int | None = None) -> Bound:
    """Return the interval of sums of so many values times the numbers of a softmax."""
    return product(interval(0.0, _UNIT.high * summed(count)), hull(values, ZERO))


def _is_of_rows(softmax: ir.Node, site: Site) -> bool:
    axis, shape = softmax.attributes.get_int("axis", -1), site.known.dims(softmax.outputs[0])
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _gemm(site: Site) -> Bound:
    tensor = site.known.stored(site.input(1))
    shape = dims(tensor) if tensor is not None else ()
    if len(shape) != 2:
        return UNKNOWN
    scaled = _weighed(site, 0, 1, shape[0], 1 if site.integer("transB", 0) else 0)
    return _with_bias(site, scaled, site.number("alpha", 1.0), site.number("beta", 1.0))


def _convolution(site: Site) -> Bound:
    tensor = site.known.stored(site.input(1))
    shape = dims(tensor) if tensor is not None else ()
    return _with_bias(site, _weighed(site, 0, 1, shape[0], 1)) if len(shape) > 2 and shape[0] else UNKNOWN


def _with_bias(site: Site, bound: Bound, alpha: float = 1.0, beta: float = 1.0) -> Bound:
    """Return the bound of a product times alpha, and a third input times beta: where its sum may begin."""
    bound = product(bound, interval(alpha, alpha))
    if not site.has(2):
        return bound
    offset = product(site.bound(2), interval(beta, beta))
    return loosened(
        widened(bound.low + offset.low, bound.high + offset.high), offset.most * (summed(None) - 1)
    )


def _attention(site: Site) -> Bound:
    """Bound the averages of the values: ONNX's Attention, with queries, keys and values as inputs."""
    return _averages(hull(site.bound(2), *([site.bound(5)] if site.has(5) else [])))


def _contrib_attention(site: Site) -> Bound:
    """Bound the averages of the values; with a bias or a past there is no bound."""
    return UNKNOWN if any(map(site.has, (3, 6, 7))) else _averages(site.bound(2))


def _biased_gate(site: Site) -> Bound:
    a = _sum(*(site.bound(port) for port in (0, 1) if site.has(port)))
    return interval(min(a.low, 0.0), max(a.high, 0.0)) if site.number("alpha", 1.0) >= 0 else UNKNOWN


_MS = "com.microsoft:"
RULES: Mapping[str, Rule] = {
    **dict.fromkeys((REARRANGES | SELECTS | EXTREMES) - {"Cast", "SequenceAt"} | {"GlobalMaxPool"}, _same),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "RoiAlign"), _average),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter"), _scatter),
    **dict.fromkeys(("Sin", "Cos", "Sign"), _within(-1.0, 1.0)),
    **dict.fromkeys(("Hardmax", "Sigmoid", "HardSigmoid"), _within(0.0, 1.0)),
    **dict.fromkeys(("Ceil", "Floor", "Round"), _whole),
    **dict.fromkeys(("Gelu", "HardSwish", "Mish"), _gated),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), _channel_norm),
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys((_MS + name for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")), _biased_gate),
    "Abs": _absolute,
    "Add": lambda site: _sum(site.bound(0), site.bound(1)),
    "Asinh": _rising(math.asinh, _ERROR),
    "Atan": _rising(math.atan, _ERROR),
    "Attention": _attention,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda site: hull(*site.bounds),
    "ConstantOfShape": _fill,
    "Conv": _convolution,
    "CumSum": _running_sum,
    "Div": _divide,
    "Dropout": _dropout,
    "Elu": _elu,
    "Erf": _rising(math.erf, _ERROR),
    "Exp": _exponential,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "LeakyRelu": _leaky,
    "Log": _logarithm,
    "LogSoftmax": lambda _: interval(-math.inf, 2**-8),
    "LpNormalization": _unit_norm,
    "MatMul": _matmul,
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
    "ReduceL1": _magnitudes,
    "ReduceL2": _length,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMean": _reduced_mean,
    "ReduceSum": _reduced_sum,
    "ReduceSumSquare": _squares,
    "Relu": lambda site: interval(max(site.bound(0).low, 0.0), max(site.bound(0).high, 0.0)),
    "Resize": _resize,
    "Shape": _shape,
    "Size": lambda _: interval(0.0, 2.0**63),
    "Softmax": lambda _: _UNIT,
    "Softplus": _softplus,
    "Softsign": _gated,
    "Sqrt": _root,
    "Sub": _subtract,
    "Sum": lambda site: _sum(*site.bounds),
    "Swish": lambda site: _gated(site) if site.number("alpha", 1.0) >= 0 else symmetric(site.bound(0).most),
    "Tanh": _rising(math.tanh, _ERROR),
    "Trilu": _with_zero,
    "Upsample": lambda site: _interpolated(site.bound(0)),
    "Where": lambda site: hull(site.bound(1), site.bound(2)),
    _MS + "EmbedLayerNormalization": _fused_norm(5, 6),
    _MS + "MultiHeadAttention": _contrib_attention,
    _MS + "SkipLayerNormalization": _fused_norm(2, 3),
    _MS + "SkipSimplifiedLayerNormalization": _fused_norm(2, None),
}
"""The rules by operator, with its domain; results of any other operator are UNKNOWN."""
