"""Sums that are spelled as products, and shares of sums.

Squares, decided as a ReduceSumSquare: products of matrices are half, and these overflow above 255.

    Einsum("...d,...d->...", x, x)                        every remaining axis is in both
    MatMul(Unsqueeze(x, -2), Unsqueeze(x, -1))            a row by itself as a column
    ReduceSum(MatMul(x, Transpose(x)) * identity)         a diagonal, as exporters write it
    MatMul(x * x, ones)                                   or a matrix of zeros and one number, which averages

Running sums, decided as a CumSum: a state space model subtracts them from each other, and they cancel.

    MatMul(triangle, x)                        down the columns; with the upper triangle, from the end
    MatMul(x, triangle)                        along the rows; also as a Gemm
    Einsum("ts,bsd->btd", triangle, x)         along any axis

The triangle is a constant, possibly sliced, expanded or cast from booleans; or it is a Trilu of ones, or
compares a Range with another.

Shares: non-negative values divided by their own sum or mean.

    y = v / (sum(v) + epsilon)            LpNormalization with p = 1; the mean may stand for the sum
    y = n / (mean(n) + epsilon)           with n = the L2 norms of x: the response that ConvNeXt V2 normalises

A share is at most 1, and with a mean at most the number of elements: however large the sum is, its range ends
here. That holds for non-negative values only: shares of a sum that cancels have no bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.model.patterns import (
    Match,
    Pattern,
    either,
    fits,
    maker,
    moved,
    number,
    op,
    origin,
    steps,
    var,
    when,
)
from amp_rewrite.onnx_facts.operators import REARRANGES
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.entries import Operator

SUM_OF_SQUARES: Operator = ("", "ReduceSumSquare")
CUMULATIVE_SUM: Operator = ("", "CumSum")
_LARGEST = 4096
"""Maximum rows of a stored matrix whose elements are inspected."""


def square(data: Pattern) -> Pattern:
    """Return the pattern of data times themselves."""
    return either(op("Pow", data, number(2.0)), op("Mul", data, data))


def self_product(data: Pattern) -> Pattern:
    """Return the pattern of the sum of the squares of data as a product."""
    return either(
        op("Einsum", data, data, where=_is_contraction),
        op("MatMul", data, data, where=_is_row_by_column),
        when(op("MatMul", square(data)), lambda match: _adds_up(match.nodes[0].inputs[1])),
        op("ReduceSum", op("Mul", op("MatMul", data, data), fits(_is_identity))),
    )


def _is_contraction(einsum: ir.Node) -> bool:
    """Return whether both operands are the same, with the same axes, of which at least one is summed over."""
    first, second, *others = einsum.inputs
    if others or first is None or second is None or origin(first) is not origin(second):
        return False
    terms, _, result = schema.text(einsum, "equation").replace(" ", "").partition("->")
    axes, _, same = terms.partition(",")
    return axes == same and set(result) < set(axes) and len(set(result)) == len(result.replace("...", "."))


def _is_row_by_column(product: ir.Node) -> bool:
    row, column = (value.shape if value is not None else None for value in product.inputs)
    if row is None or column is None or len(row) == 0 or len(column) == 0:
        return False
    return (len(row) == 1 or row[-2] == 1) and (len(column) == 1 or column[-1] == 1)


def _adds_up(matrix: ir.Value | None) -> bool:
    """Return whether a value is a stored matrix, or a vector, of one positive number and zeros."""
    tensor = stored_as(matrix)
    if tensor is None or not 0 < len(tensor.shape) <= 2 or max(tensor.shape.numpy()) > _LARGEST:
        return False
    array = tensor.numpy()
    weight = array.max(initial=0)
    return bool(weight > 0 and np.all((array == weight) | (array == 0)))


def _is_identity(value: ir.Value) -> bool:
    if maker(value, "EyeLike") is not None:
        return True
    tensor = stored_as(value)
    rows, *others = tensor.shape.numpy() if tensor is not None and len(tensor.shape) == 2 else (0,)
    if tensor is None or others != [rows] or rows > _LARGEST:
        return False
    return np.array_equal(tensor.numpy(), np.eye(rows))


_X = var("x")
_SUM_OF_SQUARES = self_product(_X)


def find_squares(graph: UnitGraph) -> Iterator[Idiom]:
    """Yield the sums of squares of a model that are written as products."""
    for node in graph.nodes_of("Einsum", "MatMul", "ReduceSum"):
        match = patterns.match(_SUM_OF_SQUARES, node.outputs[0])
        if match is not None:
            products = (part for part in match.but() if part.op_type not in REARRANGES)
            yield Idiom(SUM_OF_SQUARES, match.values["x"], outer=tuple(products))


# Running sums.

_FEWEST = 3
"""Minimum rows of a matrix that may be a triangle."""
_TRIANGLES = ((np.tril, 0), (np.tril, -1), (np.triu, 0), (np.triu, 1))
_FIRST = 64
"""Number of leading elements that are inspected first: few weights begin with so many ones and zeros."""


def _is_stored_triangle(value: ir.Value) -> bool:
    tensor = stored_as(value)
    shape = dims(tensor) if tensor is not None else ()
    rows = shape[-1] if shape else 0
    if tensor is None or shape[-2:] != (rows, rows) or tensor.size != rows**2:
        return False
    if not _FEWEST <= rows <= _LARGEST:
        return False
    matrix = numbers(tensor).reshape(rows, rows)
    if not np.isin(matrix.reshape(-1)[:_FIRST], (0, 1)).all():
        return False
    ones = np.ones_like(matrix)
    return any(np.array_equal(matrix, triangle(ones, k)) for triangle, k in _TRIANGLES)


def _holds_ones(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.size <= _LARGEST**2 and bool((numbers(tensor) == 1).all())


def _fills_with_ones(filling: ir.Node) -> bool:
    fill = filling.attributes.get("value")
    return fill is not None and not fill.is_ref() and _holds_ones(fill.as_tensor())


def _counts(value: ir.Value) -> bool:
    """Return whether stored numbers count up from 0."""
    tensor = stored_as(value)
    if tensor is None or not _FEWEST <= tensor.size <= _LARGEST:
        return False
    return np.array_equal(numbers(tensor).reshape(-1), np.arange(tensor.size))


_STORED_ONES = fits(lambda value: _holds_ones(stored_as(value)))
_ONES = moved(either(_STORED_ONES, op("ConstantOfShape", where=_fills_with_ones)))
_COUNT = moved(either(fits(_counts), op("Range")))
_COMPARISON = op("Greater GreaterOrEqual Less LessOrEqual", _COUNT, _COUNT)
_TRIANGLE = moved(either(fits(_is_stored_triangle), op("Trilu", _ONES), _COMPARISON))


def find_running_sums(graph: UnitGraph) -> Iterator[Idiom]:
    """Yield the cumulative sums of a model that are written as products."""
    is_triangle = functools.cache(lambda value: patterns.match(_TRIANGLE, value) is not None)  # layers share
    for node in graph.nodes_of("Einsum", "Gemm", "MatMul"):
        first, second, *_others = *node.inputs, None, None
        if first is None or second is None:
            continue
        which = [is_triangle(first), is_triangle(second)]
        if sum(which) == 1 and (node.op_type != "Einsum" or _is_summed(node, which.index(True))):
            yield Idiom(CUMULATIVE_SUM, second if which[0] else first, outer=(node,))


def _is_summed(einsum: ir.Node, triangle: int) -> bool:
    """Return whether one axis of the triangle is that of the sum, and the other, new to the data, is kept."""
    terms, _, result = schema.text(einsum, "equation").replace(" ", "").partition("->")
    axes, *data = terms.split(",")[:: -1 if triangle else 1]
    common_axes, new_axes = set(axes) & set(result), set(axes) - set(result)
    is_sum = len(axes) == 2 and len(common_axes) == len(new_axes) == len(data) == 1
    return is_sum and new_axes <= set(data[0]) and not common_axes & set(data[0])


# Shares.


def _passes_on(node: ir.Node) -> ir.Value | None:
    """Return the sum that a node passes on or adds a non-negative number to; None for any other node."""
    if node.op_type in REARRANGES:
        return node.inputs[0]
    operands = patterns.operands(node) if node.op_type in ("Add", "Clip", "Max") and node.inputs[0] else ()
    sums = [value for value in operands if patterns.scalar(value) is None]
    is_above = all((patterns.scalar(value) or 0.0) >= 0 for value in operands)
    return sums[0] if len(sums) == 1 and is_above else None


def _averages_few(mean: ir.Node) -> bool:
    """Return whether a mean is known to be over at most as many elements as the bound of a share."""
    if mean.op_type == "ReduceSum":
        return True
    before, after = (
        value.shape if value is not None else None for value in (mean.inputs[0], mean.outputs[0])
    )
    if before is None or after is None or len(before) != len(after):
        return False
    sizes = [size for size, reduced_size in zip(before, after, strict=True) if reduced_size == 1]
    static_sizes = [size for size in sizes if isinstance(size, int)]
    return len(static_sizes) == len(sizes) and math.prod(static_sizes) <= _MOST


_MOST = 32_752
"""Half of float16's largest number: the bound of a share is the number of elements."""
_LONGEST = 8
"""Maximum number of nodes from a sum to a share of it."""
_SHARE = op("Div", _X, steps(_passes_on, op("ReduceMean ReduceSum", _X, where=_averages_few)))


def find_shares(graph: UnitGraph, operator: Operator) -> Iterator[Idiom]:
    """Yield the written-out shares of a model, as outputs of this operator."""
    for node in graph.nodes_of("ReduceMean", "ReduceSum"):
        for end in patterns.ends_behind(node, _LONGEST):
            match = patterns.match(_SHARE, end.outputs[0]) if end.op_type == "Div" else None
            if match is not None and node in match.nodes:
                yield from _share(match, end, operator)


def _share(match: Match, end: ir.Node, operator: Operator) -> Iterator[Idiom]:
    data = match.values["x"]
    norm = maker(data, "ReduceL1", "ReduceL2")
    inner = (*([norm] if norm is not None else []), *match.but())
    is_share = maker(data, "Exp") is None and _is_nowhere_negative(data)  # else a Softmax
    source = inner[0].inputs[0]
    if is_share and source is not None and patterns.are_closed(inner, end):
        yield Idiom(operator, source, inner, end)


def _is_nowhere_negative(value: ir.Value | None) -> bool:
    """Return whether a value is known to have no element below 0, by its producers."""
    waiting, reached = [value], set[ir.Value | None]()
    while waiting:
        value = waiting.pop()
        if value in reached:
            continue
        reached.add(value)
        before = _signed(value)
        if before is None:
            return False
        waiting += before
    return True


def _signed(value: ir.Value | None) -> Sequence[ir.Value | None] | None:
    """Return the values whose signs alone determine that of a value; None where it may be negative."""
    if value is None or value.is_graph_input():
        return None
    tensor, node = stored_as(value), value.producer()
    if tensor is not None:
        return () if tensor.dtype.is_floating_point() and bool((numbers(tensor) >= 0).all()) else None
    if node is None or node.domain:
        return None
    if node.op_type in _ALL:
        return patterns.operands(node)
    if node.op_type in _FIRST_OF:
        return node.inputs[:1]
    return () if node.op_type in _NEVER_NEGATIVE or patterns.match(_REST, value) is not None else None


_REST = op("Sub", number(1.0), op("HardSigmoid Sigmoid Softmax"))  # of 1 without something that is at most 1
_NEVER_NEGATIVE = frozenset(
    "Abs Exp HardSigmoid ReduceL1 ReduceL2 ReduceSumSquare Relu Sigmoid Softmax Softplus Sqrt".split()
)
_ALL = frozenset("Add Max Mul".split())
_FIRST_OF = REARRANGES | frozenset(
    "Gather GatherElements GatherND ReduceMax ReduceMean ReduceSum Slice Split TopK".split()
)
