"""Cumulative sums that are written as products with a stored triangle of ones, decided as a CumSum.

    MatMul(triangle, x)        down the columns; with the upper triangle, from the end
    MatMul(x, triangle)        along the rows

Products of matrices are half; what a state space model takes from each other afterwards is much less than
these sums.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.entries import Operator

CUMULATIVE_SUM: Operator = ("", "CumSum")
_FEWEST, _MOST = 3, 4096
"""The rows of a matrix that is looked at."""
_TRIANGLES = ((np.tril, 0), (np.tril, -1), (np.triu, 0), (np.triu, 1))
_FIRST = 64
"""The numbers that are looked at before all others: few weights begin with so many ones and zeros."""


def find(graph: UnitGraph, _: Half) -> Iterator[Idiom]:
    """The cumulative sums of a model that are written as products, whatever the half type."""
    for unit in dict.fromkeys(graph.by_operator.get("MatMul", ())):
        node = graph.units[unit].node
        given = patterns.operands(node)
        summed = [value for value in given if not _is_triangle(value)]
        if patterns.is_default(node, "MatMul") and len(given) == 2 and len(summed) == 1:
            yield Idiom(CUMULATIVE_SUM, summed[0], outer=(node,))


def _is_triangle(value: ir.Value) -> bool:
    """Whether a value is a stored triangle of ones, with its diagonal or without."""
    tensor = stored_as(patterns.origin(value))
    shape = dims(tensor) if tensor is not None and tensor.dtype == ir.DataType.FLOAT else ()
    rows = shape[-1] if shape else 0
    if tensor is None or shape[-2:] != (rows, rows) or not _FEWEST <= rows <= _MOST or tensor.size != rows**2:
        return False
    matrix = numbers(tensor).reshape(rows, rows)
    if not np.isin(matrix.reshape(-1)[:_FIRST], (0, 1)).all():
        return False
    ones = np.ones_like(matrix)
    return any(np.array_equal(matrix, triangle(ones, k)) for triangle, k in _TRIANGLES)
