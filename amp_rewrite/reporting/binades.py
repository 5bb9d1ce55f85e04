"""Counts of numbers by binade, the interval between two powers of two: 1 and 1.5 are in binade 0."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.analysis.observed import Seen
from amp_rewrite.model import constants
from amp_rewrite.model.constants import StoredTensor

Binades = Mapping[int, int]
"""Counts of numbers by binade, without zeros, infinities and NaN."""
_NONE: Mapping[Any, int] = MappingProxyType({})
_BIAS, _INFINITE = 127, 255
"""The exponents of 1, and of infinity and NaN, as float32 has them (IEEE 754)."""


def of_array(array: NDArray[np.float32]) -> Counter[int]:
    """Return the binades of an array of floats."""
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    counts = np.bincount((bits >> 23) & _INFINITE, minlength=_INFINITE + 1)
    return Counter({power - _BIAS: int(counts[power]) for power in range(1, _INFINITE) if counts[power]})


def of_stored(tensors: Iterable[StoredTensor]) -> Binades:
    """Return the binades of all stored numbers. Raises ModelError for a value that cannot be read."""
    counts: Counter[int] = Counter()
    for one in tensors:
        for block in constants.read(one.tensor):
            counts += of_array(block)
    return counts


def of_values(observed: Seen, exponents: Mapping[str, int] = _NONE) -> Binades:
    """Return the binades of observed values, stored as v * 2**-exponent: each value counts once, by its
    largest finite magnitude.
    """
    items = observed.items()
    return Counter(math.frexp(each.most)[1] - 1 - exponents.get(name, 0) for name, each in items)
