"""Blocks rounded one after another, in memory that is used again, are rounded as by themselves."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

from amp_rewrite.certificate import element_checks
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.rounding import BlockRounding
from tests.test_half import HALVES

LARGE = rounding.LARGE


def numbers(size, seed=0):
    """Numbers of all magnitudes of half."""
    random = np.random.default_rng(seed)
    return (random.normal(0, 1, size) * 2.0 ** random.integers(-26, 12, size)).astype(np.float32)


def bits(array):
    """The bits of an array of halves."""
    return array.view(np.uint16)


@HALVES
def test_each_block_is_rounded_by_itself(kind):
    """Whatever the place and the size of the one before: a buffer that is filled again, its part, others."""
    round_block, buffer, given = BlockRounding(kind), np.empty(2 * LARGE, np.float32), []
    for seed, size in enumerate((2 * LARGE, 2 * LARGE, LARGE, 2 * LARGE, 100, LARGE + 3, 2 * LARGE)):
        buffer[:size] = numbers(size, seed)
        given += [buffer[:size], numbers(size, seed + 10), numbers(2 * size, seed + 20)[::2]]
        for block in given[-3:]:
            np.testing.assert_array_equal(bits(round_block(block)), bits(rounding.convert(block, kind)))


@HALVES
@pytest.mark.parametrize("size", [4 * LARGE, 4 * LARGE - 1, 7, 0])
def test_any_wrong_bit_of_any_block_is_found(kind, size):
    """Of a block after one that was right, in memory that still holds what was right."""
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


@HALVES
def test_threads_that_share_a_check_do_not_share_its_memory(kind, monkeypatch):
    """One block is compared only after another thread has rounded what its result would be right for."""
    right, other = numbers(LARGE, 1), numbers(LARGE, 2)
    new, is_rounded = rounding.convert(right, kind), {True: Event(), False: Event()}
    rounds = BlockRounding.__call__

    def in_turn(self, block):
        if block is right:
            assert is_rounded[False].wait(10)
        found = rounds(self, block)
        is_rounded[block is right].set()
        assert is_rounded[True].wait(10)
        return found

    monkeypatch.setattr(BlockRounding, "__call__", in_turn)
    check = element_checks.between(1, int(kind.dtype))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda old: check(old, new, Counter()), (other, right)))
    assert found == [0, None]
