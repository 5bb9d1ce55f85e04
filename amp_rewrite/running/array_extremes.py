"""The extremes of an array, and how many of its elements float16 cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.running.value_reductions import FLUSHED


def of(array: NDArray[Any], *, counts: bool) -> Extremes:
    """The extremes of an array of floats; its elements are counted with `counts`, and if they leave float16.

    NOTHING for an empty array.
    """
    if not array.size:
        return NOTHING
    if array.dtype.itemsize < np.dtype(np.float32).itemsize:
        array = array.astype(np.float32)
    low, high = float(array.min()), float(array.max())
    if not counts and -FLOAT16.largest <= low <= high <= FLOAT16.largest:  # not if one of them is NaN
        return Extremes(low, high)
    is_finite = np.isfinite(array)
    finite = array[is_finite]
    magnitudes = np.abs(finite)
    return Extremes(
        float(finite.min(initial=np.inf)),
        float(finite.max(initial=-np.inf)),
        counted=array.size,
        beyond=int(np.count_nonzero(magnitudes > FLOAT16.largest)),
        flushed=int(np.count_nonzero((magnitudes > 0) & (magnitudes <= FLUSHED))),
        not_finite=array.size - finite.size,
    )
