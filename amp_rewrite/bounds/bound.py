"""The abstract value of a tensor: an interval.

Bounds hold for values computed in float32, NaN aside, and are widened by the rounding of each operator:
ELEMENTWISE for one that rounds each element on its own, `summed` for a sum (Higham, "Accuracy and Stability
of Numerical Algorithms", 2nd edition, section 3.1: a sum of n products errs by at most n*u / (1 - n*u) of the
sum of their magnitudes, in any order; u is 2^-24).
"""

from __future__ import annotations

import math
from typing import NamedTuple

MOST = 3.4028234663852886e38
"""The largest number of float32: a larger bound may overflow to infinity."""

ELEMENTWISE = 1 + 2.0**-20
"""Sixteen times the unit roundoff of float32: above the error of any function of onnxruntime."""

LEAST = 2.0**-120
"""The least magnitude of a bound: a smaller lower bound counts as 0, a smaller upper bound as this number.
The error of float32's subnormal numbers, 2^-150, is absolute, and runtimes may flush them. A sum of 2^22
terms errs by less than `summed` of these.
"""

_UNKNOWN_TERMS = 1 << 16


class Bound(NamedTuple):
    """The interval [low, high] of all elements; an infinite end is no bound."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def most(self) -> float:
        """The largest magnitude that an element can have."""
        return max(-self.low, self.high)

    @property
    def is_finite(self) -> bool:
        """Whether the magnitude has a bound."""
        return self.most < math.inf


UNKNOWN = Bound()


def interval(low: float, high: float) -> Bound:
    """Return the bound of these ends; an end that overflows float32, or is NaN, is infinite."""
    return Bound(_end(low), 0.0 - _end(-high))


def _end(low: float) -> float:
    if not low >= -MOST:
        return -math.inf
    if -LEAST < low < LEAST:
        return -LEAST if low < 0 else 0.0
    return min(low, MOST)


def widened(low: float, high: float, factor: float = ELEMENTWISE) -> Bound:
    """Return the interval of rounded numbers: both ends moved outwards by a factor, except 0."""
    return interval(low * factor if low < 0 else low / factor, high * factor if high > 0 else high / factor)


def loosened(bound: Bound, error: float) -> Bound:
    """Return the interval with both ends moved outwards by an absolute error."""
    return interval(bound.low - error, bound.high + error)


def summed(terms: int | None) -> float:
    """Return the rounding factor of a sum of so many terms, relative to the sum of their magnitudes.

    An unknown number counts as 2^16.
    """
    return 1 + 2.0**-23 * min(terms or _UNKNOWN_TERMS, 1 << 22)


def hull(*bounds: Bound) -> Bound:
    """Return the smallest interval that includes all of these."""
    return Bound(min(bound.low for bound in bounds), max(bound.high for bound in bounds))


def times(a: float, b: float) -> float:
    """Return the product of two magnitudes; 0 times infinity is 0."""
    return 0.0 if a == 0 or b == 0 else a * b


def product(a: Bound, b: Bound) -> Bound:
    """Return the interval of the products of their elements."""
    ends = [times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return widened(min(ends), max(ends))


def symmetric(most: float) -> Bound:
    """Return the interval of numbers of at most that magnitude."""
    return interval(-most, most)
