"""Rounding of consecutive blocks to half, into a reused buffer.

Memory allocated and freed for each block returns to the system now and then, which zeroes it before it is
allocated again; and onnxruntime must be bound to each new buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Half
from amp_rewrite.numerics.rounding import Floats


class BlockRounding:
    """Rounds blocks as `rounding.convert` does with `nan=False`; for one thread."""

    def __init__(self, half: Half) -> None:
        self._half = half
        self._result: NDArray[Any] = np.empty(0, half.numpy)
        self._place = (0, 0)
        self._run: Callable[[], object] = lambda: None

    def __call__(self, block: Floats) -> NDArray[Any]:
        """Return the rounded elements of a flat block, valid until the next call."""
        fast = rounding.fast_converter(self._half) if block.size >= rounding.LARGE else None
        if fast is None:
            return rounding.convert(block, self._half, nan=False)
        source = np.ascontiguousarray(block, np.float32)
        place = (source.ctypes.data, source.size)
        if place != self._place:
            if source.size != self._result.size:
                self._result = np.empty(source.size, self._half.numpy)
            self._run, self._place = fast.bound(source, self._result), place
        self._run()
        return self._result
