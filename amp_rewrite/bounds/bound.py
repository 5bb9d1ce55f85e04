"""What is proven of a value: an interval, norms along its axes, and whether its rows are weights.

Bounds speak of what is computed in float32, NaN aside, and are widened by the rounding of each operator:
ELEMENTWISE for one that rounds each element on its own, `summed` for a sum (Higham, "Accuracy and Stability
of Numerical Algorithms", 2nd edition, section 3.1: a sum of n products errs by at most n*u / (1 - n*u) of the
sum of their magnitudes, in any order; u is 2^-24).
"""

from __future__ import annotations

import math
from typing import NamedTuple

MOST = 3.4028234663852886e38
"""The largest number of float32: what may exceed it may be infinite."""

ELEMENTWISE = 1 + 2.0**-20
"""Sixteen times the unit roundoff of float32: more than any function of onnxruntime errs."""

LEAST = 2.0**-120
"""Numbers nearer to 0 count as 0 where they bound from below, and as this one where they bound from above:
the error of float32's subnormal numbers, 2^-150, is not relative, and runtimes may flush them. A sum of 2^22
terms errs by less than `summed` of these.
"""

_UNKNOWN_TERMS = 1 << 16


class Bound(NamedTuple):
    """Every element is in [low, high]; `norms` bound the L2 norm along axis -1, -2, and so on.

    Infinity bounds nothing, and what is beyond the end of `norms` is not bounded. `sums` bounds the sum along
    the last axis where all elements are at least 0.
    """

    low: float = -math.inf
    high: float = math.inf
    norms: tuple[float, ...] = ()
    sums: float = math.inf

    @property
    def most(self) -> float:
        """The largest magnitude that an element can have."""
        return max(-self.low, self.high)

    @property
    def is_finite(self) -> bool:
        """Whether anything bounds the magnitude."""
        return self.most < math.inf


UNKNOWN = Bound()


def interval(low: float, high: float) -> Bound:
    """The bound of these ends; an end that float32 does not hold bounds nothing, and NaN neither."""
    return Bound(_end(low), 0.0 - _end(-high))


def _end(low: float) -> float:
    if not low >= -MOST:
        return -math.inf
    if -LEAST < low < LEAST:
        return -LEAST if low < 0 else 0.0
    return min(low, MOST)


def widened(low: float, high: float, factor: float = ELEMENTWISE) -> Bound:
    """The interval of numbers that were rounded: both ends further out, and 0 where it is."""
    return interval(low * factor if low < 0 else low / factor, high * factor if high > 0 else high / factor)


def loosened(bound: Bound, error: float) -> Bound:
    """The interval with both ends further out by an error that is not relative to the outcome."""
    return interval(bound.low - error, bound.high + error)


def summed(terms: int | None) -> float:
    """The factor by which a sum of so many terms may exceed that of their magnitudes; 2^16 if not known."""
    return 1 + 2.0**-23 * min(terms or _UNKNOWN_TERMS, 1 << 22)


def hull(*bounds: Bound) -> Bound:
    """The interval that holds the elements of all of them."""
    return Bound(min(bound.low for bound in bounds), max(bound.high for bound in bounds))


def times(a: float, b: float) -> float:
    """The product of two bounds: nothing times whatever is nothing."""
    return 0.0 if a == 0 or b == 0 else a * b


def product(a: Bound, b: Bound) -> Bound:
    """The interval of the products of their elements."""
    ends = [times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return widened(min(ends), max(ends))


def symmetric(most: float) -> Bound:
    """The interval of numbers of at most that magnitude."""
    return interval(-most, most)
