"""Numbers counted by binade, the power of two that they begin with: 1 and 1.5 are in binade 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.model import constants
from amp_rewrite.model.constants import StoredTensor

Binades = Mapping[int, int]
"""Counts of numbers by binade, without zeros, infinities and NaN."""

Exponents = NDArray[np.int64]
"""How many numbers have each exponent of float32, zero and infinity included."""

EXPONENTS = 256
_BIAS, _INFINITE = 127, 255
"""Of float32: the number of exponents, that of 1, and that of infinity and NaN (IEEE 754)."""


def exponents(array: NDArray[np.float32]) -> Exponents:
    """The exponents of an array of floats."""
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    return np.bincount((bits >> 23) & (EXPONENTS - 1), minlength=EXPONENTS)


def finite(found: Exponents) -> Binades:
    """The binades of what was counted."""
    powers = range(1, _INFINITE)
    return {exponent - _BIAS: int(found[exponent]) for exponent in powers if found[exponent]}


def of_stored(stored: Iterable[StoredTensor]) -> Binades:
    """The binades of all stored numbers. Raises ModelError for a value that cannot be read."""
    found = np.zeros(EXPONENTS, np.int64)
    for held in stored:
        for block in constants.read(held.tensor):
            found += exponents(block)
    return finite(found)
