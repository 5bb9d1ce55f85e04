"""The intervals of reductions, norms and products."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
from amp_rewrite.bounds.elementwise import UNIT, ZERO, add, square
from amp_rewrite.bounds.site import Rule, Site
from amp_rewrite.model.constants import dims
from amp_rewrite.onnx_facts.operators import RECURRENT

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
    total = _total(square(site.bound(0)), site.count())
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
    return product(interval(0.0, UNIT.high * summed(count)), hull(values, ZERO))


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
    a = add(*(site.bound(port) for port in (0, 1) if site.has(port)))
    return interval(min(a.low, 0.0), max(a.high, 0.0)) if site.number("alpha", 1.0) >= 0 else UNKNOWN


_MS = "com.microsoft:"
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), _channel_norm),
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys((_MS + name for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")), _biased_gate),
    "Attention": _attention,
    "BatchNormalization": _batch_norm,
    "Conv": _convolution,
    "CumSum": _running_sum,
    "Gemm": _gemm,
    "LpNormalization": _unit_norm,
    "MatMul": _matmul,
    "ReduceL1": _magnitudes,
    "ReduceL2": _length,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMean": _reduced_mean,
    "ReduceSum": _reduced_sum,
    "ReduceSumSquare": _squares,
    _MS + "EmbedLayerNormalization": _fused_norm(5, 6),
    _MS + "MultiHeadAttention": _contrib_attention,
    _MS + "SkipLayerNormalization": _fused_norm(2, 3),
    _MS + "SkipSimplifiedLayerNormalization": _fused_norm(2, None),
}
"""The rules by operator, with its domain."""
