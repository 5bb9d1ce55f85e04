"""Sums of squares that are written as products of data with themselves, decided as a ReduceSumSquare.

    Einsum("...d,...d->...", x, x)                        every axis that is left is in both
    MatMul(Unsqueeze(x, -2), Unsqueeze(x, -1))            a row by itself as a column
    ReduceSum(MatMul(x, Transpose(x)) * identity)         a diagonal, as exporters write it
    MatMul(x * x, ones)                                   or a matrix of zeros and one number, which averages

Products of matrices are half; these overflow above 255, and sooner the more terms they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model.constants import stored_as
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.entries import Operator

SUM_OF_SQUARES: Operator = ("", "ReduceSumSquare")
_OPERATORS = ("Einsum", "MatMul", "ReduceSum")
_MOVES = ("Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_DEPTH = 3
"""The most nodes that move data on the way to a product with themselves."""
_LARGEST = 4096
"""The most rows of a stored matrix that is looked at."""


class SelfProduct(NamedTuple):
    """Data, and the nodes from them up to the sum of their squares, that one left out."""

    data: ir.Value
    nodes: tuple[ir.Node, ...]


def find(graph: UnitGraph, _: Half) -> Iterator[Idiom]:
    """The sums of squares of a model that are written as products, whatever the half type."""
    for operator in _OPERATORS:
        for unit in dict.fromkeys(graph.by_operator.get(operator, ())):
            node = graph.units[unit].node
            found = of(node)
            if found is not None:
                products = (part for part in found.nodes if part.op_type not in _MOVES)
                yield Idiom(SUM_OF_SQUARES, found.data, outer=(*products, node))


def of(node: ir.Node) -> SelfProduct | None:
    """The data of which a node is the sum of squares; None for any other node."""
    if patterns.is_default(node, "Einsum"):
        return _contracted(node)
    if patterns.is_default(node, "MatMul"):
        return _multiplied(node) if _is_row_by_column(node) else _averaged(node)
    return _diagonal(node) if patterns.is_default(node, "ReduceSum") else None


def _contracted(einsum: ir.Node) -> SelfProduct | None:
    """Both operands are the same, and have the same axes, of which one at least is summed up."""
    if len(einsum.inputs) != 2 or einsum.inputs[0] is None or einsum.inputs[1] is None:
        return None
    if patterns.origin(einsum.inputs[0]) is not patterns.origin(einsum.inputs[1]):
        return None
    terms, _, result = schema.text(einsum, "equation").replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    is_sum = (
        first == second and set(result) < set(first) and len(set(result)) == len(result.replace("...", "."))
    )
    return SelfProduct(einsum.inputs[0], ()) if is_sum else None


def _averaged(product: ir.Node) -> SelfProduct | None:
    """Squares are multiplied by a matrix that adds them up, all with one weight."""
    value, matrix = product.inputs
    square = value.producer() if value is not None else None
    data = patterns.square_of(square) if square is not None else None
    return (
        SelfProduct(data, (square,)) if data is not None and square is not None and _adds_up(matrix) else None
    )


def _adds_up(matrix: ir.Value | None) -> bool:
    """Whether a value is a stored matrix, or a vector, of one positive number and zeros."""
    tensor = stored_as(matrix)
    if tensor is None or not 0 < len(tensor.shape) <= 2 or max(tensor.shape.numpy()) > _LARGEST:
        return False
    numbers = tensor.numpy()
    weight = numbers.max(initial=0)
    return bool(weight > 0 and np.all((numbers == weight) | (numbers == 0)))


def _multiplied(product: ir.Node) -> SelfProduct | None:
    """Both operands are the same data, moved."""
    first, second = (list(_sources(value)) for value in product.inputs if value is not None)
    data = next((value for value in first if value in second), None)
    if data is None:
        return None
    moved = (*first[: first.index(data)], *second[: second.index(data)])
    makers = (value.producer() for value in dict.fromkeys(moved))
    return SelfProduct(data, tuple(node for node in makers if node is not None))


def _sources(value: ir.Value) -> Iterator[ir.Value]:
    """A value, and the data of which nodes have moved it, one behind the other."""
    for _ in range(_DEPTH):
        yield value
        node = value.producer()
        if node is None or not patterns.is_default(node, *_MOVES) or node.inputs[0] is None:
            return
        value = node.inputs[0]


def _is_row_by_column(product: ir.Node) -> bool:
    """Whether a product is of one row and one column."""
    row, column = (value.shape if value is not None else None for value in product.inputs)
    if row is None or column is None or len(row) == 0 or len(column) == 0:
        return False
    return (len(row) == 1 or row[-2] == 1) and (len(column) == 1 or column[-1] == 1)


def _diagonal(total: ir.Node) -> SelfProduct | None:
    """What is added up is a product of rows and the same rows as columns, masked by an identity."""
    masked = total.inputs[0].producer() if total.inputs[0] is not None else None
    if masked is None or not patterns.is_default(masked, "Mul"):
        return None
    for value in patterns.operands(masked):
        product = patterns.maker(value, "MatMul")
        found = _multiplied(product) if product is not None else None
        if product is not None and found is not None and _is_identity(patterns.other(masked, value)):
            return SelfProduct(found.data, (*found.nodes, product, masked))
    return None


def _is_identity(value: ir.Value | None) -> bool:
    if patterns.maker(value, "EyeLike") is not None:
        return True
    tensor = stored_as(value)
    rows, *others = tensor.shape.numpy() if tensor is not None and len(tensor.shape) == 2 else (0,)
    if tensor is None or others != [rows] or rows > _LARGEST:
        return False
    return np.array_equal(tensor.numpy(), np.eye(rows))
