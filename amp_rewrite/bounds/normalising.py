"""Rules for norms and reductions, and for recurrent operators, whose outputs saturate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Norm
from amp_rewrite.analysis.units import UnitGraph
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
from amp_rewrite.bounds.elementwise import dip, total, with_norms
from amp_rewrite.bounds.known import WIDE, Known
from amp_rewrite.bounds.site import Rule, Site, exact_origin, root
from amp_rewrite.model import patterns
from amp_rewrite.onnx_facts.operators import RECURRENT


def _layer_norm(site: Site) -> Bound:
    """Bound the result by sqrt(n) * gamma + beta, for any data."""
    count, axes = _normalised_size(site)
    if count is None or not _divides_well(site):
        return UNKNOWN
    size = math.sqrt(count) * summed(count)
    scale, bias = site.bound(1), site.bound(2) if site.has(2) else interval(0.0, 0.0)
    bound = symmetric(times(size, scale.most) + bias.most)
    if axes != 1:
        return bound
    return with_norms(bound, [times(size, scale.most) + (site.spread(2, 1, count) if site.has(2) else 0.0)])


LEAST_EPSILON = 1e-30
"""The least epsilon with which a norm is bounded: squares of numbers below 1e-22 are 0 in float32."""


def _divides_well(site: Site) -> bool:
    return site.number("epsilon", 1e-5) >= LEAST_EPSILON


def _normalised_size(site: Site) -> tuple[int | None, int]:
    """Return the number of elements that are normalised together, and of the last axes that they span.

    The size of the last axis alone may also be inferred from the weight, if that has more than one element.
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
    """Bound a scale and an offset per channel."""
    scale, bias, mean, variance = (site.bound(port) for port in range(1, 5))
    if site.integer("training_mode", 0) or not variance.low >= 0:
        return UNKNOWN
    least = math.sqrt(variance.low + site.number("epsilon", 1e-5))
    if not least:
        return UNKNOWN
    factor, a = scale.most / least, site.bound(0)
    deviation = widened(a.low - mean.high, a.high - mean.low)
    product_range = product(deviation, symmetric(factor))
    whole = widened(product_range.low + bias.low, product_range.high + bias.high)
    return loosened(whole, times(a.most + mean.most, factor) * _FOLDED)


_FOLDED = 2.0**-20
"""The error of x * f + (bias - mean * f), the folded form of runtimes, relative to x * f and mean * f."""


def _mean(site: Site) -> Bound:
    """Bound a mean by its data; norms along the other axes do not grow."""
    a = site.bound(0)
    count = _count(site)
    factor = summed(count)
    bound = widened(a.low, a.high, factor)
    if site.integer("keepdims", 1) != 1:
        return bound
    return with_norms(bound, [norm * factor for norm in site.norms(0)])


def _count(site: Site) -> int | None:
    """Return the number of elements that are reduced to one; None if it is unknown."""
    shape, axes = site.dims(0), site.axes()
    if shape is None or (axes is None and site.has(1)):
        return None
    reduced_dims = (
        shape if axes is None else [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
    )
    if not axes and site.integer("noop_with_empty_axes", 0):
        return 1
    sizes = [size for size in (reduced_dims or shape) if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(reduced_dims or shape) else None


def _is_last(site: Site) -> bool:
    axes, rank = site.axes(), site.rank(0)
    return axes is not None and len(axes) == 1 and bool(rank) and axes[0] % rank == rank - 1


def _sum(site: Site) -> Bound:
    a, count = site.bound(0), _count(site)
    factor = summed(count)
    if count is None:
        bound = interval(0.0 if a.low >= 0 else -math.inf, 0.0 if a.high <= 0 else math.inf)
    else:
        bound = widened(times(count, a.low), times(count, a.high), factor)
        if _is_last(site):
            most = math.sqrt(count) * site.norm(0, 1) * factor
            bound = Bound(max(bound.low, -most), min(bound.high, most))
    return Bound(bound.low, min(bound.high, a.sums * factor)) if _is_last(site) else bound


def _norm(site: Site) -> Bound:
    """Bound the L2 norm by that of the last axis, or by the number of elements; infinite if its square
    overflows float32.
    """
    count = _count(site)
    length = root(count, site.bound(0).most) if count is not None else math.inf
    if _is_last(site):
        length = min(length, site.norm(0, 1))
    most = length * summed(count)
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
        return UNKNOWN  # -inf for an empty reduction
    return loosened(widened(a.low, a.high + math.log(count)), summed(count) - 1)


def _running_sum(site: Site) -> Bound:
    shape = site.dims(0)
    axes = site.numbers(1)
    if not shape or axes is None:
        return UNKNOWN
    size = shape[int(axes[0])] if -len(shape) <= axes[0] < len(shape) else None
    a = site.bound(0)
    if not isinstance(size, int):
        return interval(0.0 if a.low >= 0 else -math.inf, 0.0 if a.high <= 0 else math.inf)
    low, high = min(0.0, times(size, a.low)), max(0.0, times(size, a.high))
    return widened(low, high, summed(size))


def _unit_norm(site: Site) -> Bound:
    """Bound the result by 1, or 1.25 for squares so small that float32 rounds them up by a factor of 2."""
    return symmetric(1.25) if site.integer("p", 2) in (1, 2) else UNKNOWN


def _recurrent(site: Site) -> Bound:
    """Bound the outputs by the default activations and the initial state."""
    if "activations" in site.node.attributes:
        return UNKNOWN
    initial_state = site.bound(5) if site.has(5) else interval(0.0, 0.0)
    return widened(*hull(interval(-1.0, 1.0), initial_state)[:2], 1 + 2**-8)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(RECURRENT, _recurrent),
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


# Bounds of written-out norms: data divided by the root of the mean, or of the sum, of their squares.
#
#     x / sqrt(mean(x²) + epsilon)      at most sqrt(n), and so is the L2 norm of n elements
#     x / max(norm(x), epsilon)         at most 1
#
# The same holds for centred data. A divisor that is scaled, or bounded from above, gives no bound.

_MEAN = "ReduceMean"
_SUMS = ("ReduceSum", "ReduceSumSquare", "ReduceL2")


def bound_written_out_norms(graph: UnitGraph, environment: Known) -> Mapping[ir.Node, Bound]:
    """Return the bound of the quotient of every written-out norm whose size is known."""
    return dict(_quotients(graph, environment))


def _quotients(graph: UnitGraph, environment: Known) -> Iterator[tuple[ir.Node, Bound]]:
    for norm in graph.norms:
        squares = all(node is norm.reduction or node.op_type in ("Mul", "Pow") for node in norm.power)
        if squares and norm.reduction.op_type in (_MEAN, *_SUMS) and _is_consistent(norm, environment):
            reduction = Site(norm.reduction, environment)
            is_known = _is_root(norm.chain) and _is_aligned(reduction, norm.chain)
            bound = _bound(reduction) if is_known else None
            if bound is not None:
                yield norm.result, bound


def _is_consistent(norm: Norm, environment: Known) -> bool:
    """Whether the whole norm is computed in one type of 32 or 64 bits, and centred by a single mean."""
    operands = (value for node in norm.inner for value in node.inputs if value is not None)
    copies = all(
        patterns.origin(value) in (value, exact_origin(value, environment.types)) for value in operands
    )
    kinds = {environment.dtype(value) for node in norm.inner for value in node.outputs}
    means = [Site(node, environment) for node in norm.centring if node.op_type == _MEAN]
    reductions = {(site.axes(), site.integer("keepdims", 1)) for site in means}
    plain = all(node.op_type in (_MEAN, "Sub") for node in norm.centring)
    return copies and plain and len(kinds) == 1 and kinds <= WIDE and len(reductions) <= 1


def _is_aligned(reduction: Site, chain: Sequence[ir.Node]) -> bool:
    """Whether the reduction keeps its axes, or an Unsqueeze restores them."""
    new_axes = [reduction.at(node).axes() for node in chain if node.op_type == "Unsqueeze"]
    if reduction.integer("keepdims", 1) == 1:
        return not new_axes
    rank, axes = reduction.rank(0), reduction.axes()
    if len(new_axes) != 1 or not rank or axes is None or new_axes[0] is None:
        return False
    return {axis % rank for axis in axes} == {axis % rank for axis in new_axes[0]}


def _is_root(nodes: Sequence[ir.Node]) -> bool:
    """Whether these nodes take the root of a mean, bounded from below at least once by LEAST_EPSILON.

    Additions are allowed before the inversion only, and scaling nowhere.
    """
    is_bounded = is_inverted = False
    for node in nodes:
        scalars = [patterns.scalar(value) for value in node.inputs]
        if node.op_type in ("Add", "Clip", "Max") and not is_inverted:
            floor = _floor(node, scalars)
            is_bounded = is_bounded or floor >= LEAST_EPSILON
            if floor < 0:
                return False
        elif (
            node.op_type == "Reciprocal"
            or (node.op_type == "Div" and scalars[0] == 1.0)
            or (node.op_type == "Pow" and scalars[1] == _INVERSE_ROOT)
        ):
            is_inverted = not is_inverted
        elif node.op_type not in _HOLD and not (node.op_type == "Pow" and scalars[1] == _ROOT):
            return False
    return is_bounded


def _floor(node: ir.Node, scalars: list[float | None]) -> float:
    """Return the addend or the lower bound of a node; negative if there is none."""
    if node.op_type == "Clip" and (len(scalars) > _WITH_MOST - 1 or "max" in node.attributes):
        return -1.0
    largest = max((number for number in scalars if number is not None), default=-1.0)
    return node.attributes.get_float("min", largest)


_HOLD = ("Expand", "Identity", "Sqrt", "Unsqueeze")
_ROOT, _INVERSE_ROOT = 0.5, -0.5
_WITH_MOST = 3


def _bound(reduction: Site) -> Bound | None:
    """Return the bound of data divided by the root of their mean square, or of their sum of squares."""
    axes, shape = reduction.axes(), reduction.dims(0)
    if (
        axes is None
        or shape is None
        or not axes
        or not all(-len(shape) <= axis < len(shape) for axis in axes)
    ):
        return None
    sizes = [size for axis in axes if isinstance(size := shape[axis], int)]
    count = math.prod(sizes) if len(sizes) == len(axes) else None
    is_mean = reduction.node.op_type == _MEAN
    if is_mean and count is None:
        return None
    norm = math.sqrt(count or 1) * summed(count) if is_mean else summed(count)
    along = [len(shape) - axis % len(shape) for axis in axes]
    norms = tuple(norm if axis in along else math.inf for axis in range(1, max(along) + 1))
    return symmetric(norm)._replace(norms=norms)


# Rules for onnxruntime's fused operators; keys start with the domain.


def _fused_norm(gamma: int, beta: int | None) -> Rule:
    """Return the rule of a norm along the last axis, of a sum of inputs: at most sqrt(n) * gamma + beta."""

    def rule(site: Site) -> Bound:
        weight = site.dims(gamma)
        count = weight[-1] if weight else None
        if not isinstance(count, int) or site.number("epsilon", 1e-12) < LEAST_EPSILON:
            return UNKNOWN
        scale_bound = times(math.sqrt(count) * summed(count), site.bound(gamma).most)
        has_bias = beta is not None and site.has(beta)
        offset = site.bound(beta).most if beta is not None and has_bias else 0.0
        norm = scale_bound + (site.spread(beta, 1, count) if beta is not None and has_bias else 0.0)
        return with_norms(symmetric(scale_bound + offset), [norm])

    return rule


def _total(*ports: int) -> Rule:
    """Return the rule of the sum of the present inputs at these ports, with the norm along the last axis."""

    def rule(site: Site) -> Bound:
        present_ports = [port for port in ports if site.has(port)]
        shape = site.dims(ports[0])
        size = shape[-1] if shape else None
        bound = total(*(site.bound(port) for port in present_ports))
        return with_norms(
            bound, [sum(site.spread(port, 1, size) for port in present_ports) * summed(len(present_ports))]
        )

    return rule


def _gate(least: float) -> Rule:
    """Return the rule of x times a gate in [0, 1], where x is an input with an optional bias."""

    def rule(site: Site) -> Bound:
        a = _total(0, 1)(site)
        return with_norms(interval(dip(a.low, least), max(a.high, 0.0)), a.norms)

    return rule


def _quick_gelu(site: Site) -> Bound:
    return _gate(math.inf)(site) if site.number("alpha", 1.702) >= 0 else UNKNOWN


def _values(site: Site) -> Bound:
    """Bound the averages of the values; with a bias or a past there is no bound."""
    past = any(site.has(port) for port in (3, 6, 7))
    return UNKNOWN if past else product(interval(0.0, 1 + 2**-8), site.bound(2))


_MS = "com.microsoft:"
CONTRIB_RULES: Mapping[str, Rule] = {
    _MS + "BiasGelu": _gate(0.1701),
    _MS + "EmbedLayerNormalization": _fused_norm(5, 6),
    _MS + "FastGelu": _gate(0.1701),
    _MS + "Gelu": _gate(0.1701),
    _MS + "MultiHeadAttention": _values,
    _MS + "QuickGelu": _quick_gelu,
    _MS + "SkipLayerNormalization": _fused_norm(2, 3),
    _MS + "SkipSimplifiedLayerNormalization": _fused_norm(2, None),
}
FURTHER: Mapping[str, Mapping[int, Rule]] = {
    _MS + "SkipLayerNormalization": {3: _total(0, 1, 4)},
    _MS + "SkipSimplifiedLayerNormalization": {3: _total(0, 1, 3)},
}
"""The rules of further outputs, by position."""
