"""Bounds of written-out norms: data divided by the root of the mean of their squares are at most sqrt(n)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Norm
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.bounds.bound import Bound, summed, symmetric
from amp_rewrite.bounds.products import LEAST_EPSILON
from amp_rewrite.bounds.site import WIDE, Known, Site, exact_origin
from amp_rewrite.model import patterns

_MEAN = "ReduceMean"


def bound(graph: UnitGraph, known: Known) -> Mapping[ir.Node, Bound]:
    """Return the bound of the quotient of every written-out norm whose size is known."""
    return dict(_quotients(graph, known))


def _quotients(graph: UnitGraph, known: Known) -> Iterator[tuple[ir.Node, Bound]]:
    for norm in graph.norms:
        reduction = Site(norm.reduction, known)
        is_mean = norm.reduction.op_type == _MEAN and reduction.integer("keepdims", 1) == 1
        count = reduction.count() if is_mean and _is_plain(norm, known) and _is_root(norm.chain) else None
        if count:
            yield norm.result, symmetric(math.sqrt(count) * summed(count))


def _is_plain(norm: Norm, known: Known) -> bool:
    """Whether a norm is computed in one type of 32 or 64 bits, of squares, and centred by the same mean."""
    operands = (value for node in norm.inner for value in node.inputs if value is not None)
    copies = all(patterns.origin(value) in (value, exact_origin(value, known.types)) for value in operands)
    kinds = {known.dtype(value) for node in norm.inner for value in node.outputs}
    squares = all(node is norm.reduction or node.op_type in ("Mul", "Pow") for node in norm.power)
    means = (node for node in norm.centring if node.op_type != "Sub")
    alike = all(node.op_type == _MEAN and _has_axes_of(node, norm.reduction, known) for node in means)
    return copies and squares and alike and len(kinds) == 1 and kinds <= WIDE


def _has_axes_of(mean: ir.Node, reduction: ir.Node, known: Known) -> bool:
    first, second = Site(mean, known), Site(reduction, known)
    return first.integer("keepdims", 1) == 1 and first.count() == second.count()


def _is_root(nodes: Sequence[ir.Node]) -> bool:
    """Whether these nodes take the root of a mean to which at least LEAST_EPSILON is added, or its inverse.

    Additions are allowed before the inversion only, and scaling nowhere.
    """
    is_bounded = is_inverted = False
    for node in nodes:
        scalars = [patterns.scalar(value) for value in node.inputs]
        if node.op_type in ("Add", "Max") and not is_inverted:
            floor = max((number for number in scalars if number is not None), default=-1.0)
            is_bounded = is_bounded or floor >= LEAST_EPSILON
            if floor < 0:
                return False
        elif node.op_type == "Reciprocal" or (node.op_type, scalars[0]) == ("Div", 1.0):
            is_inverted = True
        elif node.op_type == "Pow" and scalars[1] in (0.5, -0.5):
            is_inverted = is_inverted or scalars[1] == -0.5
        elif node.op_type not in ("Expand", "Identity", "Sqrt"):
            return False
    return is_bounded
