"""Blocks of a large value are compared with what they are rounded to, bit by bit."""

from collections import Counter

import numpy as np
import pytest

from amp_rewrite.certificate import element_checks
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.numerics import rounding
from tests.test_rounding import HALVES

LARGE = rounding.LARGE


def numbers(size, seed=0):
    """Numbers of all magnitudes of half."""
    random = np.random.default_rng(seed)
    return (random.normal(0, 1, size) * 2.0 ** random.integers(-26, 12, size)).astype(np.float32)


def bits(array):
    """The bits of an array of halves."""
    return array.view(np.uint16)


@HALVES
@pytest.mark.parametrize("size", [4 * LARGE, 4 * LARGE - 1, 7, 0])
def test_any_wrong_bit_of_any_block_is_found(kind, size):
    """Wherever it is."""
    check, old = element_checks.between(1, int(kind.dtype)), numbers(size)
    new = rounding.convert(old, kind)
    assert check(old, new, Counter()) is None
    for place in {0, size // 2, size - 3, size - 1} & set(range(size)):
        for bit in (1, 1 << 9, 1 << 15):
            bits(new)[place] ^= bit
            assert check(old, new, Counter()) == place
            bits(new)[place] ^= bit
            assert check(old, new, Counter()) is None


@HALVES
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38, -3.4e38])
def test_what_is_not_finite_is_counted_in_a_block(kind, value):
    """As infinite where the original is finite, and not where it is not; and may not become finite. All
    others are below 2 and of the same sign.
    """
    old, uses = np.copysign(numbers(LARGE) / np.float32(1 << 14), np.float32(value)), Counter()
    old[LARGE // 2] = value
    new = rounding.convert(old, kind)
    check = element_checks.between(1, int(kind.dtype))
    assert check(old, new, uses) is None
    assert uses[Licence.OVERFLOWED] == np.isfinite(value)
    bits(new)[LARGE // 2] = 1
    assert check(old, new, Counter()) == LARGE // 2
