"""float16 and bfloat16: their limits, and the fit of an array into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Half:
    """A 16-bit floating-point type.

    `largest` is the largest finite value, `smallest` the smallest positive (subnormal) one. Every integer
    up to `integers` is exact: 2 to the power of the number of significand bits.

    Examples:
        >>> from amp_rewrite.half import BFLOAT16, FLOAT16
        >>> FLOAT16.name, FLOAT16.largest
        ('float16', 65504.0)
        >>> BFLOAT16.largest > 3e38
        True
    """

    name: str
    dtype: ir.DataType
    numpy: np.dtype[np.generic]
    largest: float
    smallest: float
    integers: int

    @property
    def fill(self) -> float:
        """The value that masks are clamped to: half of `largest`, so that adding a score or a second mask
        does not overflow. With infinities a fully masked row would become NaN in the softmax.
        """
        return self.largest / 2

    @property
    def imprecise_below(self) -> float:
        """The magnitude up to which half has 64 steps at most: smaller numbers lose several percent."""
        return 64 * self.smallest

    @property
    def least_normal(self) -> float:
        """The smallest positive number with all significand bits."""
        return self.smallest * self.integers / 2

    @property
    def tensor(self) -> str:
        """The type string of ONNX schemas, such as `tensor(float16)`."""
        return f"tensor({self.name})"


def _half(name: str, dtype: ir.DataType) -> Half:
    limits = ml_dtypes.finfo(dtype.numpy())
    return Half(
        name=name,
        dtype=dtype,
        numpy=dtype.numpy(),
        largest=float(limits.max),
        smallest=float(limits.smallest_subnormal),
        integers=2 ** (limits.nmant + 1),
    )


FLOAT16 = _half("float16", ir.DataType.FLOAT16)
BFLOAT16 = _half("bfloat16", ir.DataType.BFLOAT16)
BY_NAME = {half.name: half for half in (FLOAT16, BFLOAT16)}
HALF_TYPES = frozenset(half.dtype for half in BY_NAME.values())


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of a float32 array into a half type.

    `low` and `high` bound its finite values (0 if there are none). `overflowing` counts finite values that
    become infinite in half, `flushed` non-zero values that become zero. `exact`: every value is
    representable. `whole`: every finite value is an integer. `nan`: at least one value is NaN.
    """

    low: float
    high: float
    overflowing: int
    flushed: int
    exact: bool
    whole: bool
    nan: bool

    @property
    def magnitude(self) -> float:
        """The largest magnitude of a finite value."""
        return max(-self.low, self.high)


PERFECT = Fit(0.0, 0.0, 0, 0, True, True, nan=False)

CHUNK = 1 << 18
"""Values per block: 1 MiB of float32 stays in a core's cache for all passes over it, and bounds the memory
for arrays of any size.
"""

_SAMPLE = 64
"""Values tested first: weights are rarely exact in half or integral, and these usually settle it."""


def fit(array: NDArray[np.float32], half: Half) -> Fit:
    """Return the fit of `array` into `half`; `array` is not modified."""
    flat = array.reshape(-1)
    chunks = (flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK))
    with np.errstate(all="ignore"):
        return join([_fit(chunk, half) for chunk in chunks])


def join(parts: Sequence[Fit]) -> Fit:
    """Return the fit of an array, from the fits of its blocks."""
    if len(parts) <= 1:
        return next(iter(parts), PERFECT)
    return Fit(
        low=min(part.low for part in parts),
        high=max(part.high for part in parts),
        overflowing=sum(part.overflowing for part in parts),
        flushed=sum(part.flushed for part in parts),
        exact=all(part.exact for part in parts),
        whole=all(part.whole for part in parts),
        nan=any(part.nan for part in parts),
    )


def fit_each(arrays: Sequence[NDArray[np.float32]], half: Half) -> list[Fit]:
    """Return the fit of each of these non-empty arrays, computed at once, which is fastest for small ones."""
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    starts = np.cumsum([0, *(array.size for array in arrays[:-1])])
    finite, nan, sizes = np.isfinite(flat), np.isnan(flat), np.abs(flat)
    with np.errstate(all="ignore"):
        rounded, whole = flat.astype(half.numpy).astype(np.float32), np.trunc(flat)
    some = np.logical_or.reduceat(finite, starts)
    columns = (
        np.where(some, np.minimum.reduceat(np.where(finite, flat, np.inf), starts), 0),
        np.where(some, np.maximum.reduceat(np.where(finite, flat, -np.inf), starts), 0),
        np.add.reduceat(finite & np.isinf(rounded), starts, dtype=np.intp),
        np.add.reduceat((sizes <= half.smallest / 2) & (sizes != 0), starts, dtype=np.intp),
        np.logical_and.reduceat((rounded == flat) | nan, starts),
        np.logical_and.reduceat((whole == flat) | nan, starts),
        np.logical_or.reduceat(nan, starts),
    )
    return [Fit(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _fit(array: NDArray[np.float32], half: Half) -> Fit:
    low, high = float(array.min()), float(array.max())
    nan = isnan(low)
    if not (isfinite(low) and isfinite(high)):
        finite = array[np.isfinite(array)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return Fit(
        low=low,
        high=high,
        overflowing=_overflowing(array, half) if max(-low, high) > half.largest else 0,
        flushed=_flushed(np.abs(array), half),
        exact=_survives(array, lambda part: part.astype(half.numpy), nan=nan),
        whole=_survives(array, np.trunc, nan=nan),
        nan=nan,
    )


def _overflowing(array: NDArray[np.float32], half: Half) -> int:
    finite = array[np.isfinite(array)]
    return int(np.count_nonzero(np.isinf(finite.astype(half.numpy).astype(np.float32))))


def _flushed(sizes: NDArray[np.float32], half: Half) -> int:
    """Count the non-zero values that round to zero: up to half of `smallest`, as the tie goes to even."""
    if sizes.min() > half.smallest / 2:
        return 0
    return int(np.count_nonzero(sizes <= half.smallest / 2)) - int(np.count_nonzero(sizes == 0))


def _survives(
    array: NDArray[np.float32], change: Callable[[NDArray[np.float32]], NDArray[Any]], *, nan: bool
) -> bool:
    """Return whether `change` preserves every value; NaN equals NaN."""
    if nan:
        return np.array_equal(change(array).astype(np.float32), array, equal_nan=True)
    head = array[:_SAMPLE]
    return bool((change(head) == head).all() and (change(array) == array).all())
