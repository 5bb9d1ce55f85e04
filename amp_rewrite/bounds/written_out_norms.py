"""Bounds of written-out norms: data divided by the root of the mean, or of the sum, of their squares.

    x / sqrt(mean(x²) + epsilon)       at most sqrt(n), and so is the L2 norm of n elements
    x / max(norm(x), epsilon)          at most 1

Data that were centred first are the same. Where the divisor is scaled, or bounded from above, nothing is
known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.idioms import normalisation, patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.bounds import exact_copies
from amp_rewrite.bounds.bound import Bound, summed, symmetric
from amp_rewrite.bounds.known import WIDE, Known
from amp_rewrite.bounds.normalising import LEAST_EPSILON
from amp_rewrite.bounds.site import Site
from amp_rewrite.numerics.half import Half

_MEAN = "ReduceMean"
_SUMS = ("ReduceSum", "ReduceSumSquare", "ReduceL2")


def find(graph: UnitGraph, known: Known, half: Half) -> Mapping[ir.Node, Bound]:
    """The bound of the quotient of every written-out norm whose size is known."""
    return dict(_found(graph, known, half))


def _found(graph: UnitGraph, known: Known, half: Half) -> Iterator[tuple[ir.Node, Bound]]:
    for idiom in normalisation.find(graph, half):
        if idiom.result is None or not _is_consistent(idiom, known):
            continue
        parts = [node for node in idiom.inner if node is not idiom.result and not _is_centring(node, idiom)]
        at = [index for index, node in enumerate(parts) if node.op_type in (_MEAN, *_SUMS)]
        squares = all(node.op_type in ("Mul", "Pow") for node in parts[: at[0]]) if at else False
        if len(at) == 1 and squares:
            reduction, chain = Site(parts[at[0]], known), parts[at[0] + 1 :]
            bound = _bound(reduction) if _is_root(chain) and _is_aligned(reduction, chain) else None
            if bound is not None:
                yield idiom.result, bound


def _is_consistent(idiom: Idiom, known: Known) -> bool:
    """Whether all of it is computed in one type of 32 or 64 bits, and one mean is taken from all data."""
    read = (value for node in idiom.inner for value in node.inputs if value is not None)
    copies = all(patterns.origin(value) in (value, exact_copies.origin(value, known.types)) for value in read)
    kinds = {known.dtype(value) for node in idiom.inner for value in node.outputs}
    means = [Site(node, known) for node in idiom.inner if node.op_type == _MEAN and _is_centring(node, idiom)]
    reduced = {(site.axes(), site.integer("keepdims", 1)) for site in means}
    return copies and len(kinds) == 1 and kinds <= WIDE and len(reduced) <= 1


def _is_aligned(reduction: Site, chain: Sequence[ir.Node]) -> bool:
    """Whether what is reduced keeps its axes, or gets them back at once."""
    added = [reduction.at(node).axes() for node in chain if node.op_type == "Unsqueeze"]
    if reduction.integer("keepdims", 1) == 1:
        return not added
    rank, axes = reduction.rank(0), reduction.axes()
    if len(added) != 1 or not rank or axes is None or added[0] is None:
        return False
    return {axis % rank for axis in axes} == {axis % rank for axis in added[0]}


def _is_centring(node: ir.Node, idiom: Idiom) -> bool:
    """Whether a node takes the mean of the data, or takes it from them."""
    if node.op_type == "Sub":
        mean = patterns.maker(node.inputs[1], _MEAN)
        source = mean.inputs[0] if mean is not None else None
        return source is not None and patterns.origin(source) is patterns.origin(idiom.data)
    source = node.inputs[0] if node.op_type == _MEAN else None
    return source is not None and patterns.origin(source) is patterns.origin(idiom.data)


def _is_root(nodes: Sequence[ir.Node]) -> bool:
    """Whether these take a root of a mean and bound it from below, at least once, by LEAST_EPSILON.

    Before they invert it they may add as well; behind that, and in between, nothing scales.
    """
    bounded = inverted = False
    for node in nodes:
        scalars = [patterns.scalar(value) for value in node.inputs]
        if node.op_type in ("Add", "Clip", "Max") and not inverted:
            floor = _floor(node, scalars)
            bounded = bounded or floor >= LEAST_EPSILON
            if floor < 0:
                return False
        elif (
            node.op_type == "Reciprocal"
            or (node.op_type == "Div" and scalars[0] == 1.0)
            or (node.op_type == "Pow" and scalars[1] == _INVERSE_ROOT)
        ):
            inverted = not inverted
        elif node.op_type not in _HOLD and not (node.op_type == "Pow" and scalars[1] == _ROOT):
            return False
    return bounded


def _floor(node: ir.Node, scalars: list[float | None]) -> float:
    """The number that a node adds, or below which it lets no value fall; negative where there is none."""
    if node.op_type == "Clip" and (len(scalars) > _WITH_MOST - 1 or "max" in node.attributes):
        return -1.0
    largest = max((number for number in scalars if number is not None), default=-1.0)
    return node.attributes.get_float("min", largest)


_HOLD = ("Expand", "Identity", "Sqrt", "Unsqueeze")
_ROOT, _INVERSE_ROOT = 0.5, -0.5
_WITH_MOST = 3


def _bound(reduction: Site) -> Bound | None:
    """The bound of data over the root of their mean square, or of their sum of squares."""
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
