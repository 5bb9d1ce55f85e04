"""The extremes of arrays, and how many of their elements float16 cannot hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.running.value_reductions import FLUSHED

Floats = NDArray[Any]

_SMALL = 1 << 12
"""Elements up to which arrays are put together: a call of NumPy takes as long as to reduce so many."""

_BLOCK = 1 << 16
"""Elements that are counted at a time: they stay in the cache of a core."""


def of(array: Floats, *, counts: bool) -> Extremes:
    """The extremes of an array of floats; its elements are counted with `counts`, and if they leave float16.

    NOTHING for an empty array.
    """
    if array.dtype.itemsize < np.dtype(np.float32).itemsize:
        array = array.astype(np.float32)
    lows, highs = ends([array])
    return between(array, float(lows[0]), float(highs[0]), counts=counts)


def ends(arrays: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The least and the greatest element of each array, of float32 or wider.

    NaN if an element is, and infinities in the wrong order if there is none.
    """
    lows, highs = np.full(len(arrays), np.inf), np.full(len(arrays), -np.inf)
    small = [at for at, array in enumerate(arrays) if 0 < array.size <= _SMALL]
    if small:
        together = np.concatenate([arrays[at] for at in small], axis=None)
        starts = np.cumsum([0, *(arrays[at].size for at in small[:-1])])
        lows[small] = np.minimum.reduceat(together, starts)
        highs[small] = np.maximum.reduceat(together, starts)
    for at, array in enumerate(arrays):
        if array.size > _SMALL:
            lows[at], highs[at] = array.min(), array.max()
    return lows, highs


def fit(lows: Any, highs: Any) -> Any:
    """Whether the elements between these ends are all finite, and float16 holds them; not if one is NaN."""
    return (-FLOAT16.largest <= lows) & (lows <= highs) & (highs <= FLOAT16.largest)


def between(array: Floats, low: float, high: float, *, counts: bool) -> Extremes:
    """As `of`, for an array with these ends."""
    if not array.size:
        return NOTHING
    if not counts and fit(low, high):
        return Extremes(low, high)
    if math.isfinite(low) and math.isfinite(high):
        return _counted(array, low, high, 0)
    finite = array[np.isfinite(array)]
    low, high = float(finite.min(initial=np.inf)), float(finite.max(initial=-np.inf))
    return _counted(finite, low, high, array.size - finite.size)


def cut(array: Floats, low: float, high: float, *, counts: bool) -> Extremes:
    """As `between`, for the array with 0 in place of all below it."""
    if not array.size or counts or not fit(low, high):
        return of(np.maximum(array, 0), counts=counts)
    return Extremes(max(low, 0.0), max(high, 0.0))


def _counted(finite: Floats, low: float, high: float, not_finite: int) -> Extremes:
    """The extremes of finite elements, beside so many that are not."""
    beyond = flushed = 0
    is_beyond = max(-low, high) > FLOAT16.largest
    for block in _blocks(finite):
        sizes = np.abs(block)
        flushed += int(np.count_nonzero(sizes <= FLUSHED)) - int(np.count_nonzero(sizes == 0))
        beyond += int(np.count_nonzero(sizes > FLOAT16.largest)) if is_beyond else 0
    return Extremes(
        low,
        high,
        counted=finite.size + not_finite,
        beyond=beyond,
        flushed=flushed,
        not_finite=not_finite,
    )


def _blocks(array: Floats) -> Iterator[Floats]:
    flat = array.reshape(-1)
    return (flat[at : at + _BLOCK] for at in range(0, flat.size, _BLOCK))
