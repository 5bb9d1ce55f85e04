"""Rules for norms and reductions, and for recurrent operators, whose outputs saturate."""

from __future__ import annotations

import math
from collections.abc import Mapping

from amp_rewrite.bounds.bound import (
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
from amp_rewrite.bounds.elementwise import with_norms
from amp_rewrite.bounds.site import Rule, Site, root


def _layer_norm(site: Site) -> Bound:
    """At most sqrt(n) * gamma + beta, whatever came before."""
    count, axes = _normalised(site)
    if count is None or not _divides_well(site):
        return UNKNOWN
    size = math.sqrt(count) * summed(count)
    scale, bias = site.bound(1), site.bound(2) if site.has(2) else interval(0.0, 0.0)
    found = symmetric(times(size, scale.most) + bias.most)
    if axes != 1:
        return found
    return with_norms(found, [times(size, scale.most) + (site.spread(2, 1, count) if site.has(2) else 0.0)])


LEAST_EPSILON = 1e-30
"""The least epsilon below which nothing bounds a norm: squares of numbers below 1e-22 are 0 in float32."""


def _divides_well(site: Site) -> bool:
    return site.number("epsilon", 1e-5) >= LEAST_EPSILON


def _normalised(site: Site) -> tuple[int | None, int]:
    """How many elements are normalised together, and along how many of the last axes.

    Of the last axis alone also by the weight, which has as many elements where it has more than one.
    """
    shape, weight, axis = site.dims(0), site.dims(1), site.integer("axis", -1)
    last = shape[axis:] if shape else ()
    if axis == -1 and weight and weight[-1] != 1 and not (last and isinstance(last[0], int)):
        last = weight[-1:]
    sizes = [size for size in last if isinstance(size, int)]
    return (math.prod(sizes) if last and len(sizes) == len(last) else None), len(last)


def _instance_norm(site: Site) -> Bound:
    return _of_channels(site, 1)


def _group_norm(site: Site) -> Bound:
    shape, groups = site.dims(0), site.integer("num_groups", 1)
    channels = shape[1] if shape and len(shape) > 1 else None
    return _of_channels(site, channels // groups) if isinstance(channels, int) and groups > 0 else UNKNOWN


def _of_channels(site: Site, channels: int) -> Bound:
    shape = site.dims(0)
    sizes = [size for size in (shape or ())[2:] if isinstance(size, int)]
    if shape is None or len(sizes) != len(shape) - 2 or not _divides_well(site):
        return UNKNOWN
    count = channels * math.prod(sizes)
    return symmetric(times(math.sqrt(count) * summed(count), site.bound(1).most) + site.bound(2).most)


def _batch_norm(site: Site) -> Bound:
    """A factor and an offset for each channel."""
    scale, bias, mean, variance = (site.bound(port) for port in range(1, 5))
    if site.integer("training_mode", 0) or not variance.low >= 0:
        return UNKNOWN
    least = math.sqrt(variance.low + site.number("epsilon", 1e-5))
    if not least:
        return UNKNOWN
    factor, a = scale.most / least, site.bound(0)
    moved = widened(a.low - mean.high, a.high - mean.low)
    found = product(moved, symmetric(factor))
    whole = widened(found.low + bias.low, found.high + bias.high)
    return loosened(whole, times(a.most + mean.most, factor) * _FOLDED)


_FOLDED = 2.0**-20
"""The error of x * f + (bias - mean * f), to which runtimes fold it, relative to x * f and mean * f."""


def _mean(site: Site) -> Bound:
    """Means of parts of a value; those of axes that stay are no longer."""
    a = site.bound(0)
    count = _count(site)
    factor = summed(count)
    found = widened(a.low, a.high, factor)
    if site.integer("keepdims", 1) != 1:
        return found
    return with_norms(found, [norm * factor for norm in site.norms(0)])


def _count(site: Site) -> int | None:
    """How many elements are reduced to one; None where that is open."""
    shape, axes = site.dims(0), site.axes()
    if shape is None or (axes is None and site.has(1)):
        return None
    reduced = shape if axes is None else [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
    if not axes and site.integer("noop_with_empty_axes", 0):
        return 1
    sizes = [size for size in (reduced or shape) if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(reduced or shape) else None


def _is_last(site: Site) -> bool:
    axes, rank = site.axes(), site.rank(0)
    return axes is not None and len(axes) == 1 and bool(rank) and axes[0] % rank == rank - 1


def _sum(site: Site) -> Bound:
    a, count = site.bound(0), _count(site)
    factor = summed(count)
    if count is None:
        found = interval(0.0 if a.low >= 0 else -math.inf, 0.0 if a.high <= 0 else math.inf)
    else:
        found = widened(times(count, a.low), times(count, a.high), factor)
        if _is_last(site):
            most = math.sqrt(count) * site.norm(0, 1) * factor
            found = Bound(max(found.low, -most), min(found.high, most))
    return Bound(found.low, min(found.high, a.sums * factor)) if _is_last(site) else found


def _norm(site: Site) -> Bound:
    """The L2 norm, along the last axis or of what is counted; infinite where its square is, in float32."""
    count = _count(site)
    found = root(count, site.bound(0).most) if count is not None else math.inf
    if _is_last(site):
        found = min(found, site.norm(0, 1))
    most = found * summed(count)
    return interval(0.0, most if most * most < MOST else math.inf)


def _sum_of_squares(site: Site) -> Bound:
    norm = _norm(site).high
    return interval(0.0, times(norm, norm) * summed(_count(site)))


def _sum_of_magnitudes(site: Site) -> Bound:
    count = _count(site)
    most = times(count, site.bound(0).most) if count is not None else math.inf
    return interval(0.0, most * summed(count))


def _log_sum_exp(site: Site) -> Bound:
    count, a = _count(site), site.bound(0)
    if not count:
        return UNKNOWN  # of nothing it is -inf
    return loosened(widened(a.low, a.high + math.log(count)), summed(count) - 1)


def _running_sum(site: Site) -> Bound:
    shape = site.dims(0)
    stored = site.numbers(1)
    if not shape or stored is None:
        return UNKNOWN
    size = shape[int(stored[0])] if -len(shape) <= stored[0] < len(shape) else None
    a = site.bound(0)
    if not isinstance(size, int):
        return interval(0.0 if a.low >= 0 else -math.inf, 0.0 if a.high <= 0 else math.inf)
    low, high = min(0.0, times(size, a.low)), max(0.0, times(size, a.high))
    return widened(low, high, summed(size))


def _unit_norm(site: Site) -> Bound:
    """At most 1, and 1.25 where squares are so small that float32 rounds them up to twice what they are."""
    return symmetric(1.25) if site.integer("p", 2) in (1, 2) else UNKNOWN


def _recurrent(site: Site) -> Bound:
    """What the default activations give, and the state that it began with."""
    if "activations" in site.node.attributes:
        return UNKNOWN
    begun = site.bound(5) if site.has(5) else interval(0.0, 0.0)
    return widened(*hull(interval(-1.0, 1.0), begun)[:2], 1 + 2**-8)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm),
    "BatchNormalization": _batch_norm,
    "CumSum": _running_sum,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LpNormalization": _unit_norm,
    "ReduceL1": _sum_of_magnitudes,
    "ReduceL2": _norm,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMean": _mean,
    "ReduceSum": _sum,
    "ReduceSumSquare": _sum_of_squares,
}
