"""Bounds of stored tensors, read once and in blocks: intervals, norms of rows and columns, spectral norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.bounds.bound import UNKNOWN, Bound, hull, interval, summed
from amp_rewrite.model import constants
from amp_rewrite.numerics.half import CHUNK
from amp_rewrite.process import blas_threads

# Upper bounds of the largest singular value of a matrix. Gram iteration (Delattre et al., "Efficient bound
# of Lipschitz constant for convolutional layers by Gram iteration", ICML 2023): with G = W'W, four times G
# <- G'G, the Frobenius norm of G bounds its largest singular value from above, and its 2^5-th root that of
# W. Power iteration would give a lower bound only.

_STEPS = 4
_SAFETY = 1 + 2.0**-20
"""The factor for rounding in float64: a step of matrices below 2^11 rows errs by at most n * 2^-53 of the
squared Frobenius norm, which is at most n times the squared spectral norm, so by less than 2^-30 of the bound
(Higham, section 3.5); each root that follows halves the error.
"""

Matrix = NDArray[np.float64]


def norm_of_gram(gram: Matrix) -> float:
    """Return a bound of the largest singular value of W from W'W."""
    size = float(np.linalg.norm(gram))
    if not math.isfinite(size):
        return math.inf
    logarithm, weight = 0.0, 1.0
    for _ in range(_STEPS):
        if size == 0:
            return 0.0
        gram = gram / size
        logarithm += weight * math.log(size)
        gram, weight = gram @ gram, weight / 2
        size = float(np.linalg.norm(gram))
    largest = math.exp(logarithm + weight * math.log(size)) if size else 0.0
    return math.sqrt(largest * _SAFETY)


_SMALL = 1 << 20
"""The most elements of a tensor that is read as a whole, and has norms along its axes."""
_WIDEST = 256
"""The most rows or columns of a Gram matrix; a wider matrix is split, and the squares of its parts add up:
about a thousand operations for each weight, and for random numbers a bound that is 1.2 times (at 512) to 2.5
times (at 4,096) as large.
"""
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

Floats = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MatrixNorms:
    """The largest L1 and L2 norms of a row and of a column of a matrix of `rows` by `columns`."""

    rows: int
    columns: int
    row_l1: float
    row_l2: float
    column_l1: float
    column_l2: float

    @property
    def frobenius(self) -> float:
        """A bound of the L2 norm of all its elements."""
        return min(math.sqrt(self.rows) * self.row_l2, math.sqrt(self.columns) * self.column_l2)

    @property
    def transposed(self) -> MatrixNorms:
        """The norms of the transpose."""
        return MatrixNorms(
            self.columns,
            self.rows,
            self.column_l1,
            self.column_l2,
            self.row_l1,
            self.row_l2,
        )


def of_tensor(tensor: ir.TensorProtocol) -> Bound:
    """Return the exact interval of a stored tensor of numbers."""
    if not (
        tensor.dtype.is_floating_point() or tensor.dtype.is_integer() or tensor.dtype == ir.DataType.BOOL
    ):
        return UNKNOWN
    if math.prod(constants.dims(tensor)) > _SMALL:
        return _interval_of_blocks(tensor)
    array = constants.numbers(tensor)
    if not array.size:
        return interval(0.0, 0.0)
    return interval(*_ends(array))


def _ends(array: Floats) -> tuple[float, float]:
    """Return the least and the greatest number, NaN aside."""
    low, high = float(array.min()), float(array.max())
    if math.isnan(low):
        flat = np.asarray(array, np.float64).reshape(-1)
        low, high = float(np.fmin.reduce(flat)), float(np.fmax.reduce(flat))
    return low, high


def norm_of(tensor: ir.TensorProtocol, axis: int) -> float:
    """Return the largest L2 norm of a stored tensor along its axis -`axis`; infinity if not measured."""
    shape = constants.dims(tensor)
    if math.prod(shape) > _SMALL or axis > len(shape) or not tensor.dtype.is_floating_point():
        return math.inf
    array = np.asarray(constants.numbers(tensor), np.float64)
    norm = float(np.sqrt(np.square(array).sum(axis=-axis)).max(initial=0.0)) * summed(1)
    return norm if math.isfinite(norm) else math.inf


def _interval_of_blocks(tensor: ir.TensorProtocol) -> Bound:
    if tensor.dtype not in _FLOATS:
        return of_type(tensor.dtype)
    ends = [_ends(block) for block in constants.read(tensor)]
    return hull(*(interval(low, high) for low, high in ends))


@functools.cache
def of_type(dtype: ir.DataType | None) -> Bound:
    """Return the range of an element type; UNKNOWN for floats."""
    if dtype == ir.DataType.BOOL:
        return interval(0.0, 1.0)
    if dtype is None or not dtype.is_integer() or dtype.bitwidth < _BYTE:
        return UNKNOWN
    limits = np.iinfo(dtype.numpy())
    return interval(float(limits.min), float(limits.max))


_BYTE = 8


def of_matrix(tensor: ir.TensorProtocol, rows: int, columns: int) -> MatrixNorms | None:
    """Return the norms of a stored tensor of floats as a matrix of this shape; None for other types."""
    if tensor.dtype not in _FLOATS or not rows or not columns or rows * columns != tensor.size:
        return None
    sums = _Sums(columns)
    for block in _row_blocks(tensor, rows, columns):
        sums.add(block)
    up = summed(max(columns, min(rows, CHUNK // columns)))  # terms that are summed in float32
    underflow = max(rows, columns) * _FLUSHED
    row_l2, column_l2 = math.sqrt(sums.row_sq + underflow), math.sqrt(float(sums.sq.max()) + underflow)
    norms = (sums.row_l1, row_l2, float(sums.l1.max()), column_l2) if sums.row_l1 else (0.0,) * 4
    row_l1, row_l2, column_l1, column_l2 = (n * up if math.isfinite(n) else math.inf for n in norms)
    return MatrixNorms(rows, columns, row_l1, row_l2, column_l1, column_l2)


_FLUSHED = 2.0**-149
"""The largest underflow error of a float32 product."""


class _Sums:
    """Accumulators of a matrix that is read in blocks: sums of rows in float32, of columns in float64."""

    def __init__(self, columns: int) -> None:
        self.l1, self.sq = np.zeros(columns), np.zeros(columns)
        self.row_l1 = self.row_sq = 0.0

    def add(self, block: Floats) -> None:
        """Add a block of whole rows."""
        with np.errstate(all="ignore"):  # overflow gives infinity, which is no bound
            sizes = np.abs(block)
            squares = np.square(sizes)
            self.l1 += sizes.sum(axis=0)
            self.sq += squares.sum(axis=0)
            self.row_l1 = max(self.row_l1, _largest(sizes.sum(axis=1)))
            self.row_sq = max(self.row_sq, _largest(squares.sum(axis=1)))


def _largest(sums: Floats) -> float:
    """Return the largest sum, or infinity if one is NaN."""
    largest = float(sums.max())
    return math.inf if math.isnan(largest) else largest


def _row_blocks(tensor: ir.TensorProtocol, rows: int, columns: int) -> Iterator[Floats]:
    """Yield the matrix in blocks of whole rows, each of about CHUNK numbers."""
    step = max(1, CHUNK // columns)
    if tensor.size <= CHUNK or not isinstance(tensor, ir.ExternalTensor):
        whole = constants.numbers(tensor).reshape(rows, columns)
        yield from (np.asarray(whole[at : at + step], np.float32) for at in range(0, rows, step))
        return
    for at in range(0, rows, step):
        stop = min(rows, at + step)
        parts = [block.copy() for block in constants.read(tensor, at * columns, stop * columns)]
        yield np.asarray(np.concatenate(parts), np.float32).reshape(stop - at, columns)


def spectral_norm_of(tensor: ir.TensorProtocol, norms: MatrixNorms) -> float:
    """Return an upper bound of the largest singular value of a stored matrix, from Gram matrices of its
    smaller side, perhaps in parts; at most the Frobenius norm.
    """
    rows, columns = norms.rows, norms.columns
    total = norms.frobenius**2
    if not math.isfinite(total):
        return math.inf
    blocks, tall = _row_blocks(tensor, rows, columns), columns <= rows
    grams = _column_grams(blocks, columns) if tall else _row_grams(blocks)
    terms = max(1, CHUNK // columns) if tall else columns  # summed in float32, the rest in float64
    error = summed(terms) - 1  # of a Gram matrix: n * u times the product of the norms
    with np.errstate(all="ignore"), blas_threads.single():  # overflow gives infinity, which is no bound
        parts = [norm_of_gram(gram) for gram in grams]
    underflow = rows * columns * _FLUSHED
    square_sum = math.fsum(part * part for part in parts) + 2 * error * total + underflow
    return min(math.sqrt(square_sum), math.sqrt(total))


def _column_grams(blocks: Iterator[Floats], columns: int) -> Iterator[Floats]:
    """Yield W'W of parts of at most _WIDEST columns."""
    starts = range(0, columns, _WIDEST)
    grams = [np.zeros((min(_WIDEST, columns - at),) * 2) for at in starts]
    for block in blocks:
        for i, at in enumerate(starts):
            part = block[:, at : at + _WIDEST]
            grams[i] += part.T @ part
    yield from grams


def _row_grams(blocks: Iterator[Floats]) -> Iterator[Floats]:
    """Yield WW' of parts of at most _WIDEST rows, gathered from the blocks."""
    buffer: list[Floats] = []
    for block in blocks:
        buffer.append(block)
        if sum(map(len, buffer)) >= _WIDEST:
            whole = np.concatenate(buffer)
            yield from (_gram(whole[at : at + _WIDEST]) for at in range(0, len(whole), _WIDEST))
            buffer = []
    if buffer:
        yield _gram(np.concatenate(buffer))


def _gram(part: Floats) -> Floats:
    return (part @ part.T).astype(np.float64)
