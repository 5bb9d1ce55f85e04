"""Cumulative sums that are written as products with a triangle of ones, decided as a CumSum.

    MatMul(triangle, x)                        down the columns; with the upper triangle, from the end
    MatMul(x, triangle)                        along the rows; also as a Gemm
    Einsum("ts,bsd->btd", triangle, x)         along any axis

The triangle is stored, and may be cut, expanded or cast from truths; or it is a Trilu of ones, or compares
a Range with one. Products of matrices are half; what a state space model takes from each other afterwards is
much less than these sums.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.entries import Operator

CUMULATIVE_SUM: Operator = ("", "CumSum")
_PRODUCTS = ("Einsum", "Gemm", "MatMul")
_MOVES = ("Cast", "Expand", "Identity", "Slice", "Transpose", "Unsqueeze")
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_DEPTH = 6
"""The most nodes that move a triangle, or what it is made of."""
_FEWEST, _MOST = 3, 4096
"""The rows of a matrix that is looked at."""
_TRIANGLES = ((np.tril, 0), (np.tril, -1), (np.triu, 0), (np.triu, 1))
_FIRST = 64
"""The numbers that are looked at before all others: few weights begin with so many ones and zeros."""


def find(graph: UnitGraph, _: Half) -> Iterator[Idiom]:
    """The cumulative sums of a model that are written as products, whatever the half type."""
    is_triangle = functools.cache(_is_triangle)  # layers share one
    for operator in _PRODUCTS:
        for unit in dict.fromkeys(graph.by_operator.get(operator, ())):
            node = graph.units[unit].node
            first, second, *_others = *node.inputs, None, None
            if first is None or second is None or not patterns.is_default(node, operator):
                continue
            which = [is_triangle(_source(value)) for value in (first, second)]
            if sum(which) == 1 and (operator != "Einsum" or _is_summed(node, which.index(True))):
                yield Idiom(CUMULATIVE_SUM, second if which[0] else first, outer=(node,))


def _is_summed(einsum: ir.Node, triangle: int) -> bool:
    """Whether one axis of the triangle is that of the sum, and the other one, new to the data, is left."""
    terms, _, result = schema.text(einsum, "equation").replace(" ", "").partition("->")
    axes, *data = terms.split(",")[:: -1 if triangle else 1]
    kept, added = set(axes) & set(result), set(axes) - set(result)
    is_sum = len(axes) == 2 and len(kept) == len(added) == len(data) == 1
    return is_sum and added <= set(data[0]) and not kept & set(data[0])


def _is_triangle(source: ir.Value) -> bool:
    """Whether a value that nothing moves is a triangle of ones, with its diagonal or without."""
    node, tensor = source.producer(), stored_as(source)
    if tensor is not None:
        return _is_stored_triangle(tensor)
    if node is not None and patterns.is_default(node, "Trilu"):
        return _is_ones(node.inputs[0])
    return node is not None and patterns.is_default(node, *_COMPARISONS) and all(map(_is_range, node.inputs))


def _source(value: ir.Value) -> ir.Value:
    """The value that a few nodes move, expand or cast to this one."""
    return patterns.origin(value, _MOVES, _DEPTH)


def _is_stored_triangle(tensor: ir.TensorProtocol) -> bool:
    shape = dims(tensor)
    rows = shape[-1] if shape else 0
    if shape[-2:] != (rows, rows) or not _FEWEST <= rows <= _MOST or tensor.size != rows**2:
        return False
    matrix = numbers(tensor).reshape(rows, rows)
    if not np.isin(matrix.reshape(-1)[:_FIRST], (0, 1)).all():
        return False
    ones = np.ones_like(matrix)
    return any(np.array_equal(matrix, triangle(ones, k)) for triangle, k in _TRIANGLES)


def _is_ones(value: ir.Value | None) -> bool:
    """Whether a value is made of stored ones alone."""
    source = _source(value) if value is not None else None
    filling = patterns.maker(source, "ConstantOfShape")
    fill = filling.attributes.get("value") if filling is not None else None
    tensor = fill.as_tensor() if fill is not None and not fill.is_ref() else stored_as(source)
    return tensor is not None and tensor.size <= _MOST**2 and bool((numbers(tensor) == 1).all())


def _is_range(value: ir.Value | None) -> bool:
    """Whether a value counts from 0 on, as a Range does or a stored one."""
    source = _source(value) if value is not None else None
    tensor = stored_as(source)
    if tensor is None:
        return patterns.maker(source, "Range") is not None
    few = _FEWEST <= tensor.size <= _MOST
    return few and np.array_equal(numbers(tensor).reshape(-1), np.arange(tensor.size))
