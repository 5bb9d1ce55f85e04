"""Rules for operators that move elements, or take some of them: norms follow their axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from amp_rewrite.bounds.bound import UNKNOWN, Bound, hull, interval, loosened
from amp_rewrite.bounds.elementwise import with_norms
from amp_rewrite.bounds.known import Dims
from amp_rewrite.bounds.site import NOTHING, Rule, Site
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_facts.operators import EXTREMES, REARRANGES, SELECTS


def _same(site: Site) -> Bound:
    """Keep the interval of the input alone, for any change of shape."""
    return site.bound(0)._replace(norms=(), sums=math.inf)


def _identity(site: Site) -> Bound:
    return site.bound(0)


def _dropout(site: Site) -> Bound:
    """Bound Dropout: the identity at inference; in training, surviving elements are scaled up."""
    training = site.numbers(2) if site.has(2) else (0.0,)
    return site.bound(0) if training is not None and not any(training) else UNKNOWN


def _max_pool(site: Site) -> Bound:
    """Keep the interval, unless a window may lie entirely in the padding, where it has no largest element."""
    holes = any(size != 1 for size in site.integers("dilations") or ()) or site.integer("ceil_mode", 0)
    has_padding = any(site.integers("pads") or ()) or site.text("auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    )
    return UNKNOWN if holes and has_padding else _same(site)


def _below(site: Site) -> Bound:
    """Bound a part of each axis: no norm grows."""
    return with_norms(_same(site), site.norms(0))._replace(sums=site.bound(0).sums)


def _trilu(site: Site) -> Bound:
    bound = hull(site.bound(0), NOTHING)
    return with_norms(bound, site.norms(0))._replace(sums=site.bound(0).sums)


def _transpose(site: Site) -> Bound:
    a, rank = site.bound(0), site.rank(0)
    order = site.integers("perm") or tuple(reversed(range(rank)))
    if len(order) != rank:
        return _same(site)
    norms = [site.norm(0, rank - axis) for axis in reversed(order)]
    stays = bool(order) and order[-1] == rank - 1
    return with_norms(_same(site), norms)._replace(sums=a.sums if stays else math.inf)


def _reshape(site: Site) -> Bound:
    """Bound a Reshape: rows are split, which no norm outgrows, or k of them are joined."""
    before, after, a = site.dims(0), site.out(), site.bound(0)
    if not before or not after:
        return _same(site)
    common = _common(before, after)
    norms = [site.norm(0, axis) for axis in range(1, common + 1)]
    if not common:
        norms = [_of_rows(site.norm(0, 1), before[-1], after[-1])]
    return with_norms(_same(site), norms)._replace(sums=a.sums if common else math.inf)


def _common(before: Dims, after: Dims) -> int:
    """Return the number of the last axes that are the same."""
    count = 0
    for a, b in zip(reversed(before), reversed(after), strict=False):
        if not isinstance(a, int) or a != b:
            break
        count += 1
    return count


def _of_rows(norm: float, old: object, new: object) -> float:
    if not isinstance(old, int) or not isinstance(new, int) or not old or not new:
        return math.inf
    if old % new == 0:
        return norm
    return norm * math.sqrt(new // old) if new % old == 0 else math.inf


def _squeeze(site: Site) -> Bound:
    return _drop_axes(site, site.rank(0), site.axes(), site.dims(0))


def _drop_axes(site: Site, rank: int, axes: Sequence[int] | None, shape: Dims | None) -> Bound:
    """Drop the norms of the axes that a Squeeze removes; all of size 1 if it names none."""
    if axes is None and not site.has(1) and shape is not None and all(isinstance(d, int) for d in shape):
        axes = [axis for axis, size in enumerate(shape) if size == 1]
    if axes is None or not rank:
        return _same(site)
    removed_axes = {axis % rank for axis in axes}
    norms = [site.norm(0, rank - axis) for axis in reversed(range(rank)) if axis not in removed_axes]
    stays = rank - 1 not in removed_axes
    return with_norms(_same(site), norms)._replace(sums=site.bound(0).sums if stays else math.inf)


def _unsqueeze(site: Site) -> Bound:
    axes, before = site.axes(), site.rank(0)
    if axes is None or not before:
        return _same(site)
    rank = before + len(axes)
    new_axes = {axis % rank for axis in axes}
    old = iter(range(1, before + 1))
    most = site.bound(0).most
    norms = [most if axis in new_axes else site.norm(0, next(old)) for axis in reversed(range(rank))]
    stays = rank - 1 not in new_axes
    return with_norms(_same(site), norms)._replace(sums=site.bound(0).sums if stays else math.inf)


def _concat(site: Site) -> Bound:
    union, rank = hull(*site.bounds), site.rank(0)
    axis = site.integer("axis", 1)
    if not rank or any(site.rank(port) != rank for port in range(len(site.bounds))):
        return union
    concat_axis = rank - axis % rank
    ports = range(len(site.bounds))
    norms = [
        (math.hypot if along == concat_axis else max)(*(site.norm(port, along) for port in ports), 0.0)
        for along in range(1, rank + 1)
    ]
    return with_norms(union, norms)


def _gather(site: Site) -> Bound:
    """Bound entries of an axis, in any number: the axes behind it keep their norms."""
    rank, bound = site.rank(0), _same(site)
    if not rank:
        return bound
    axis = site.integer("axis", 0) % rank
    behind = rank - 1 - axis
    norms = [site.norm(0, along) for along in range(1, behind + 1)]
    return with_norms(bound, norms)._replace(sums=site.bound(0).sums if behind else math.inf)


def _expand(site: Site) -> Bound:
    out = site.out()
    if out is None:
        return _same(site)
    norms = [site.spread(0, axis, out[-axis]) for axis in range(1, len(out) + 1)]
    return with_norms(_same(site), norms)


def _pad(site: Site) -> Bound:
    if site.text("mode", "constant") != "constant":
        return _same(site)
    filler = site.bound(2) if site.has(2) else interval(*(site.number("value", 0.0),) * 2)
    union = hull(site.bound(0), filler)
    return with_norms(union, site.norms(0)) if filler.low == filler.high == 0 else union


def _scatter(site: Site) -> Bound:
    moves = effective_op(site.node) in (site.node.op_type, "Max", "Min")
    return hull(site.bound(0), site.bound(2)) if moves else UNKNOWN


def _one_hot(site: Site) -> Bound:
    return site.bound(2)


def _fill(site: Site) -> Bound:
    attribute = site.node.attributes.get("value")
    if attribute is None:
        return NOTHING
    number = float(attribute.as_tensor().numpy().reshape(-1)[0])
    return interval(number, number)


def _range(site: Site) -> Bound:
    start, limit, step = (site.bound(port) for port in range(3))
    bound = Bound(start.low, max(limit.high, start.high)) if step.low > 0 else hull(start, limit)
    return loosened(bound, bound.most * 2**-20)


def _shape(site: Site) -> Bound:
    sizes = site.dims(0)
    is_static = sizes is not None and all(isinstance(size, int) for size in sizes)
    most = max((size for size in sizes or () if isinstance(size, int)), default=0)
    return interval(0.0, float(most) if is_static else _LARGEST_SIZE)


_LARGEST_SIZE = 2.0**63


def _resize(site: Site) -> Bound:
    if site.text("mode", "nearest") not in ("nearest", "linear"):
        return UNKNOWN
    outside = interval(*(site.number("extrapolation_value", 0.0),) * 2)
    crops = site.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return hull(_interpolate(site), outside) if crops else _interpolate(site)


def _interpolate(site: Site) -> Bound:
    """Bound an interpolation or average: weights whose sum is 1, rounded."""
    a = site.bound(0)
    return interval(a.low - abs(a.low) * 2**-16, a.high + abs(a.high) * 2**-16)


def _average(site: Site) -> Bound:
    return hull(_interpolate(site), NOTHING)


def _grid_sample(site: Site) -> Bound:
    is_supported = site.text("mode", "linear") in ("bilinear", "linear", "nearest")
    return _average(site) if is_supported else UNKNOWN


RULES: Mapping[str, Rule] = {
    **dict.fromkeys((REARRANGES | SELECTS | EXTREMES) - {"Cast", "SequenceAt"} | {"GlobalMaxPool"}, _same),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "RoiAlign"), _average),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter"), _scatter),
    **dict.fromkeys(("Slice", "Split"), _below),
    "Concat": _concat,
    "ConstantOfShape": _fill,
    "Dropout": _dropout,
    "Expand": _expand,
    "Gather": _gather,
    "GridSample": _grid_sample,
    "Identity": _identity,
    "MaxPool": _max_pool,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Size": lambda _: interval(0.0, _LARGEST_SIZE),
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Upsample": _interpolate,
}
