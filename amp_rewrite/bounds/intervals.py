"""Interval arithmetic of real numbers, and the rounding of float32.

A sum of n products errs by at most n*u / (1 - n*u) of the sum of their magnitudes, in any order; u is 2^-24
(Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST = 3.4028234663852886e38
"""The largest number of float32: a larger end may overflow to infinity."""
_LEAST = 2.0**-120
"""The least magnitude of an end: a smaller lower end counts as 0, a smaller upper end as this number. The
error of float32's subnormal numbers, 2^-150, is absolute, and runtimes may flush them.
"""
_ROUNDED = 1 + 2.0**-20
"""Sixteen times the unit roundoff of float32: above the error of any function of onnxruntime."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The interval [low, high] of all elements, NaN aside; an infinite end is no bound."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def most(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        ends = [times(x, y) for x in (self.low, self.high) for y in (other.low, other.high)]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Interval) -> Interval:
        has_sign = other.low > 0 or other.high < 0  # 0 is of either sign
        return self * Interval(1 / other.high, 1 / other.low) if has_sign else UNKNOWN

    def squared(self) -> Interval:
        """Return the interval of squares; what underflows is 0."""
        least = max(self.low, -self.high, 0.0)
        return Interval(times(least, least), times(self.most, self.most)).widened()

    def widened(self, factor: float = _ROUNDED) -> Interval:
        """Return the interval of rounded numbers: both ends moved outwards by a factor, except 0."""
        low = self.low * factor if self.low < 0 else self.low / factor
        return rounded(low, self.high * factor if self.high > 0 else self.high / factor)


UNKNOWN = Interval()
ZERO = Interval(0.0, 0.0)


def rounded(low: float, high: float) -> Interval:
    """Return the interval of these ends in float32: one that overflows, or is NaN, is infinite."""
    return Interval(_end(low), 0.0 - _end(-high))


def _end(low: float) -> float:
    if not low >= -_MOST:
        return -math.inf
    if -_LEAST < low < _LEAST:
        return -_LEAST if low < 0 else 0.0
    return min(low, _MOST)


def summed(terms: int | None) -> float:
    """Return the rounding factor of a sum of so many terms, relative to the sum of their magnitudes.

    An unknown number counts as 2^16.
    """
    return 1 + 2.0**-23 * min(terms or 1 << 16, 1 << 22)


def times(a: float, b: float) -> float:
    """Return the product of two ends; 0 times infinity is 0."""
    return 0.0 if a == 0 or b == 0 else a * b


def symmetric(most: float) -> Interval:
    """Return the interval of numbers of at most that magnitude."""
    return Interval(-most, most)


def hull(*intervals: Interval) -> Interval:
    """Return the smallest interval that includes all of these."""
    return Interval(min(each.low for each in intervals), max(each.high for each in intervals))


def larger(*intervals: Interval) -> Interval:
    """Return the interval of the maximum of an element of each."""
    return Interval(max(each.low for each in intervals), max(each.high for each in intervals))


def smaller(*intervals: Interval) -> Interval:
    """Return the interval of the minimum of an element of each."""
    return Interval(min(each.low for each in intervals), min(each.high for each in intervals))
