"""Element-wise comparison of stored tensors with the originals, rounded where they are half."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.value_kinds import FLOAT
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16, Half

Array = NDArray[Any]

Check = Callable[[Array, Array, Counter[Licence]], int | None]
"""Returns the position of the first wrong element of a block, None if all are right; counts licences used."""

HALVES = {int(half.dtype): half for half in (FLOAT16, BFLOAT16)}
"""The half types by ONNX element type."""


def between(before: int, after: int) -> Check | None:
    """Return the check for elements converted from one type to another; None for a forbidden conversion."""
    if before == after:
        return _check_identity
    if before in HALVES and after == FLOAT:
        return _check_widening
    is_float = before == FLOAT or before in HALVES
    return functools.partial(rounded, HALVES[after]) if is_float and after in HALVES else None


def _first(wrong: Array) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1)


def _check_identity(old: Array, new: Array, _: Counter[Licence]) -> int | None:
    if old.dtype == new.dtype and old.tobytes() == new.tobytes():
        return None
    return _first((_bits(old) != _bits(new)).any(axis=1))


def rescaled(check: Check, exponent: int) -> Check:
    """Return a check for elements that were multiplied by 2^-exponent, exactly, before."""

    def run(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
        with np.errstate(all="ignore"):
            scaled = np.ldexp(old, -exponent)
            inexact = np.isfinite(old) & (old != 0) & ~((np.abs(scaled) >= TINY) & np.isfinite(scaled))
        return _first(inexact) if inexact.any() else check(scaled, new, uses)

    return run


def exponent_between(old: Array, new: Array) -> int | None:
    """Return the e for which the largest number v is nearest to v * 2^-e; None for zeros."""
    with np.errstate(all="ignore"):
        sizes = np.abs(old.astype(np.float64))
        ratios = sizes / np.abs(new.astype(np.float64))
    sizes = np.where(np.isfinite(ratios) & (ratios > 0), sizes, 0)
    if not sizes.any():
        return None
    return round(np.log2(ratios.flat[sizes.argmax()]))


def least_exponent(old: Array, new: Array) -> int | None:
    """Return the least e for which all numbers, times 2^-e, become the least number of float16, rounded or
    lifted, as they are; None for any others.
    """
    sizes, stored = np.abs(old).astype(np.float64), np.abs(new).astype(np.float64)
    if not sizes.any() or not np.array_equal(stored, np.where(sizes, FLOAT16.smallest, 0)):
        return None
    return math.floor(math.log2(sizes.max() / (1.5 * FLOAT16.smallest))) + 1


TINY = float(np.finfo(np.float32).tiny)


def check_restored(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    """Check a whole float32 tensor: numbers beyond the range of one half type saturated, or all were rounded
    or saturated to it, and widened again.
    """
    differs = old.view(np.uint32) != new.view(np.uint32)
    for half in HALVES.values():
        clamped = _is_clamped(old, new, half, half.fill)
        if not (differs & ~clamped).any():
            uses[Licence.CLAMPED] += int(differs.sum())
            return None
    for half in HALVES.values():
        half_uses = Counter({Licence.RESTORED: 1})
        if _is_restored(old, new, half, half_uses):
            uses.update(half_uses)
            return None
    within = differs & ~_clamp_mask(old, FLOAT16)
    return _first(within if within.any() else differs)


def _is_restored(old: Array, new: Array, half: Half, uses: Counter[Licence]) -> bool:
    """Return whether every element was rounded or saturated to half, and widened again; in float16 perhaps
    rounded alone, all times a power of two.
    """
    with np.errstate(all="ignore"):
        narrow = new.astype(half.numpy)
        is_exact = (narrow.astype(np.float32).view(np.uint32) == new.view(np.uint32)) | np.isnan(new)
    if is_exact.all() and rounded(half, old, narrow, uses) is None:
        return True
    return half is FLOAT16 and any(_is_rounded_at(exponent, old, new) for exponent in _exponents(new))


def _is_rounded_at(exponent: int, old: Array, new: Array) -> bool:
    """Return whether all numbers, times 2^-exponent, were rounded to float16's range, without its low end."""
    with np.errstate(all="ignore"):
        old, new = np.ldexp(old, -exponent), np.ldexp(new, -exponent)
        is_rounded = rounding.convert(old, FLOAT16).astype(np.float32).view(np.uint32) == new.view(np.uint32)
        mean_square = np.mean(np.square(new.astype(np.float64)))
    return bool(is_rounded.all() and np.isfinite(new).all() and mean_square >= _LOW_END**2)


def _exponents(array: Array) -> Iterator[int]:
    """Yield the least e at which all numbers times 2^-e fit into float16, and the largest at which they are
    multiples of its smallest number.
    """
    numbers = array[np.isfinite(array) & (array != 0)]
    if numbers.size:
        fractions, exponents = np.frexp(numbers)
        digits = np.abs(fractions * 2.0**24).astype(np.int64)
        steps = exponents - 24 + np.log2(digits & -digits).astype(np.int64)
        yield math.ceil(math.log2(float(np.abs(numbers).max()) / FLOAT16.largest))
        yield int(steps.min()) - round(np.log2(FLOAT16.smallest))


_LOW_END = FLOAT16.least_normal
"""The least root mean square of numbers that float16 holds with most of their digits."""


def _clamp_mask(old: Array, half: Half) -> Array:
    return np.isfinite(old) & (np.abs(old) > half.largest)


def _is_clamped(old: Array, new: Array, half: Half, fill: float) -> Array:
    """Return where float32 numbers beyond the range of half became the fill, with their sign."""
    return _clamp_mask(old, half) & (new == np.copysign(fill, old))


OTHER_FILLS = (FLOAT16.largest, 1e4)
"""What masks become in float16 by onnxruntime's and onnxconverter-common's converters; ours is `fill`."""


class Clamps(NamedTuple):
    """The size of what numbers beyond the range of half became, and their signs."""

    fill: float
    signs: Set[int]


def find_clamps(parts: Iterable[tuple[Array, Array]]) -> Clamps | None:
    """Return how numbers were clamped; None if to several numbers, or beside larger ones of their sign: that
    would change their order.
    """
    fills, signs, highest = set[float](), set[int](), {1: 0.0, -1: 0.0}
    for old, new in parts:
        sizes = np.abs(new.astype(np.float32))
        half = BFLOAT16 if new.dtype == BFLOAT16.numpy else FLOAT16
        clamped = np.isfinite(sizes) & _clamp_mask(old, half)
        if new.dtype == np.float32:
            clamped &= np.isin(sizes, (FLOAT16.fill, BFLOAT16.fill))
        fills.update(sizes[clamped].tolist())
        signs.update(np.sign(old[clamped]).astype(int).tolist())
        others = old[np.isfinite(old) & ~clamped]
        highest = {sign: max(most, (sign * others).max(initial=0)) for sign, most in highest.items()}
    fill = min(fills)
    is_largest = all(highest[sign] <= fill for sign in signs)
    return Clamps(fill, signs) if len(fills) == 1 and is_largest else None


def rounded(
    half: Half, old: Array, new: Array, uses: Counter[Licence], fill: float | None = None
) -> int | None:
    """Return the position of the first element that is neither rounded nor saturated to half correctly; None
    if all are. Counts the licences used. A NaN may have any bits. What is clamped is `fill`, half's own if
    None.
    """
    old, bits = np.asarray(old, np.float32), new.view(np.uint16)
    infinity = np.array(np.inf, half.numpy).view(np.uint16)
    differs = rounding.convert(old, half, nan=False).view(np.uint16) != bits
    sizes = bits & _MAGNITUDE
    if not differs.any() and sizes.max(initial=0) < infinity:  # the common case
        return None
    clamped = differs & _is_clamped(old, new.astype(np.float32), half, half.fill if fill is None else fill)
    lifted = differs & _lift_mask(old, new, half)
    overflowed = (sizes == infinity) & np.isfinite(old)
    masks = {Licence.CLAMPED: clamped, Licence.LIFTED: lifted, Licence.OVERFLOWED: overflowed}
    uses.update({licence: int(mask.sum()) for licence, mask in masks.items() if mask.any()})
    return _first(differs & ~clamped & ~lifted & ~(np.isnan(old) & np.isnan(new.astype(np.float32))))


_MAGNITUDE = np.uint16(0x7FFF)


def _lift_mask(old: Array, new: Array, half: Half) -> Array:
    """Return the positions of nonzero numbers raised to one of float16's two smallest, of the same sign.

    Converters do so to avoid underflow: onnxruntime's to 2^-24, onnxconverter-common's to 1e-7.
    """
    if half is not FLOAT16:
        return np.zeros(old.shape, bool)
    size, raised = np.abs(old), new.astype(np.float32)
    at_least = [(size < least) & (np.abs(raised) == least) for least in (half.smallest, 2 * half.smallest)]
    return (old != 0) & (np.signbit(old) == np.signbit(raised)) & (at_least[0] | at_least[1])


def _check_widening(old: Array, new: Array, _: Counter[Licence]) -> int | None:
    wide = old.astype(np.float32)
    wrong = wide.view(np.uint32) != np.ascontiguousarray(new).view(np.uint32)
    return _first(wrong & ~(np.isnan(wide) & np.isnan(new)))
