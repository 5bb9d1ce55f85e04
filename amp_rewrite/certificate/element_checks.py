"""Element-wise comparison of stored tensors with the originals, rounded where they are half.

Large tensors are checked while they are written to files, so that the proof need not read them again.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.value_kinds import FLOAT
from amp_rewrite.files.reading import FileIdentity
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16, Half
from amp_rewrite.numerics.rounding import BlockRounding

Array = NDArray[Any]

Check = Callable[[Array, Array, Counter[Licence]], int | None]
"""Returns the position of the first wrong element of a block, None if all are right; counts licences used."""

Rounding = Callable[[Array], Array | None]
"""Returns a rounded block, valid until the next call; None where more than one result would be right."""

HALVES = {int(half.dtype): half for half in (FLOAT16, BFLOAT16)}
"""The half types by ONNX element type."""


@functools.cache  # the buffers serve every tensor of a thread
def between(before: int, after: int) -> Check | None:
    """Return the check for elements converted from one type to another; None for a forbidden conversion."""
    if before == after:
        return _check_clamped_float if before == FLOAT else _check_identity
    if before == FLOAT and after in HALVES:
        return _RoundedBlocks(HALVES[after])
    if before in HALVES and after == FLOAT:
        return _check_widening
    return (
        functools.partial(_check_conversion, HALVES[after]) if before in HALVES and after in HALVES else None
    )


@functools.cache
def only_result(before: int, after: int) -> Rounding:
    """Return a rounding of float32 blocks that are finite in half, where no other bits would be right."""
    return _FiniteBlocks(HALVES[after]) if before == FLOAT and after in HALVES else lambda _: None


def _first(wrong: Array) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1)


def _check_identity(old: Array, new: Array, _: Counter[Licence]) -> int | None:
    if old.dtype == new.dtype and old.tobytes() == new.tobytes():
        return None
    return _first((_bits(old) != _bits(new)).any(axis=1))


def _check_clamped_float(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    """Check for equal bits, or for saturation of all elements beyond the range of one half type."""
    if np.array_equal(old.view(np.uint32), new.view(np.uint32)):
        return None
    differs = old.view(np.uint32) != new.view(np.uint32)
    for half in (FLOAT16, BFLOAT16):
        clamped = _clamp_mask(old, half) & (new == np.copysign(np.float32(half.fill), old))
        if not (differs & ~clamped).any():
            uses[Licence.CLAMPED] += int(differs.sum())
            return None
    if any(_is_restored(old, new, half, Counter()) for half in (FLOAT16, BFLOAT16)):
        uses[Licence.RESTORED] += 1
        return None
    within = differs & ~_clamp_mask(old, FLOAT16)
    return _first(within if within.any() else differs)


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


def restored(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    """Check float32 elements that were rounded or saturated to half, and widened again."""
    uses[Licence.RESTORED] = 1
    for half in (FLOAT16, BFLOAT16):
        half_uses = Counter[Licence]()
        if _is_restored(old, new, half, half_uses):
            uses.update(half_uses)
            return None
    return int(np.argmax(old.view(np.uint32) != new.view(np.uint32)))


def _is_restored(old: Array, new: Array, half: Half, uses: Counter[Licence]) -> bool:
    """Return whether every element was rounded or saturated to half, and widened again; in float16 perhaps
    rounded alone, all times a power of two.
    """
    with np.errstate(all="ignore"):
        narrow = new.astype(half.numpy)
        is_exact = (narrow.astype(np.float32).view(np.uint32) == new.view(np.uint32)) | np.isnan(new)
    if is_exact.all() and rounded(old, narrow, uses, half) is None:
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


def rounded(old: Array, new: Array, uses: Counter[Licence], half: Half) -> int | None:
    """Return the position of the first element that is neither rounded nor saturated to half correctly; None
    if all are. Counts the licences used.
    """
    old = np.asarray(old, np.float32)
    if _is_finite(new, half) and _equal_bits(rounding.convert(old, half, nan=False), new):
        return None
    return _first_not_rounded(old, new, uses, half)


def _first_not_rounded(old: Array, new: Array, uses: Counter[Licence], half: Half) -> int | None:
    bits, expected = new.view(np.uint16), rounding.convert(old, half).view(np.uint16)
    differs = expected != bits
    if differs.any():
        fill = np.copysign(np.float32(half.fill), old).astype(half.numpy).view(np.uint16)
        clamped = differs & _clamp_mask(old, half) & (bits == fill)
        uses[Licence.CLAMPED] += int(clamped.sum())
        lifted = differs & _lift_mask(old, new, half)
        uses[Licence.LIFTED] += int(lifted.sum())
        differs &= ~clamped & ~lifted & ~(np.isnan(old) & np.isnan(new.astype(np.float32)))
    overflowed = ((bits & ~_SIGN) == _infinity(half)) & np.isfinite(old)
    uses[Licence.OVERFLOWED] += int(overflowed.sum())
    return _first(differs)


def _lift_mask(old: Array, new: Array, half: Half) -> Array:
    """Return the positions of nonzero numbers raised to one of float16's two smallest, of the same sign.

    Converters do so to avoid underflow: onnxruntime's to 2^-24, onnxconverter-common's to 1e-7.
    """
    if half is not FLOAT16:
        return np.zeros(old.shape, bool)
    size, raised = np.abs(old), new.astype(np.float32)
    at_least = [(size < least) & (np.abs(raised) == least) for least in (half.smallest, 2 * half.smallest)]
    return (old != 0) & (np.signbit(old) == np.signbit(raised)) & (at_least[0] | at_least[1])


def _equal_bits(expected: Array, actual: Array) -> bool:
    at_once = np.uint16 if expected.size % 4 else np.uint64
    return np.array_equal(expected.view(at_once), actual.view(at_once))


def _is_finite(new: Array, half: Half) -> bool:
    """Return whether all elements are finite, the common case; a NaN may have any bits."""
    bits, infinity = new.view(np.uint16), _infinity(half)
    if not np.bitwise_or.reduce(bits, axis=None) & _TWO:  # one pass over most weights, in place of two
        return True
    return bool(bits.view(np.int16).max() < infinity and bits.max() < infinity | _SIGN)


class _FiniteBlocks(threading.local):
    """A `Rounding` with a buffer that each thread reuses."""

    def __init__(self, half: Half) -> None:
        self._half, self._round = half, BlockRounding(half)

    def __call__(self, old: Array) -> Array | None:
        new = self._round(old)
        return new if _is_finite(new, self._half) else None


class _RoundedBlocks(threading.local):
    """The check `rounded` for successive blocks, with a buffer that each thread reuses."""

    def __init__(self, half: Half) -> None:
        self._half, self._only_result = half, _FiniteBlocks(half)

    def __call__(self, old: Array, new: Array, uses: Counter[Licence]) -> int | None:
        """Implement `Check`."""
        expected = self._only_result(old)
        if expected is not None and _equal_bits(expected, new):
            return None
        return _first_not_rounded(old, new, uses, self._half)


_SIGN = np.uint16(0x8000)
_TWO = np.uint16(0x4000)
"""The bit of either half type that is set exactly in magnitudes of 2 or more."""


def _infinity(half: Half) -> Any:
    return np.array(np.inf, half.numpy).view(np.uint16)[()]


def _check_conversion(half: Half, old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    """Check elements of one half type that were rounded to the other, with the licences of `rounded`."""
    uses[Licence.CONVERTED] += 1
    return rounded(old, new, uses, half)


def _check_widening(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    uses[Licence.WIDENED] += 1
    wide = old.astype(np.float32)
    wrong = wide.view(np.uint32) != np.ascontiguousarray(new).view(np.uint32)
    return _first(wrong & ~(np.isnan(wide) & np.isnan(new)))


# ---- tensors checked at writing


@dataclass(frozen=True, slots=True)
class Extent:
    """The location of a tensor's elements in a file: byte offset, element type, and number."""

    file: FileIdentity
    offset: int
    data_type: int
    size: int


@dataclass(frozen=True, slots=True)
class _Written:
    """A tensor written to a file, its source, and the licences used."""

    source: Extent
    data_type: int
    size: int
    exponent: int
    uses: Counter[Licence]


_Start = tuple[int, int, int]
"""The device and inode of a file, and a byte offset."""


class WrittenTensors:
    """The outcomes of checks at writing; those of a file that has changed since are void."""

    def __init__(self) -> None:
        self._found: dict[_Start, _Written] = {}
        self._files: dict[tuple[int, int], FileIdentity] = {}

    def write(
        self,
        file: BinaryIO,
        data_type: int,
        source: Extent,
        blocks: Iterable[Array],
        convert: Callable[[Array], Array],
        exponent: int = 0,
    ) -> None:
        """Write a tensor of a type to a file, from blocks of `source`. A block is rounded by the check itself
        where only one result is right, else by `convert`, whose result is checked. With an exponent e,
        `convert` also multiplies by 2^-e.

        A tensor with a wrong block is not recorded; the later comparison reports it. Raises OSError.
        """
        check, convert_exactly = (
            between(source.data_type, data_type),
            only_result(source.data_type, data_type),
        )
        if exponent:
            check, convert_exactly = check and rescaled(check, exponent), lambda _: None
        start, uses, size, right = file.tell(), Counter[Licence](), 0, check is not None
        for before in blocks:
            after = convert_exactly(before)
            if after is None:
                after = convert(before)
                right = right and check is not None and check(before, after, uses) is None
            file.write(after.astype(after.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)
            size += after.size
        if right and size == source.size and Licence.RESTORED not in uses:  # a property of the whole tensor
            status = os.fstat(file.fileno())
            record = _Written(source, data_type, size, exponent, uses)
            self._found[status.st_dev, status.st_ino, start] = record

    def close(self, path: Path) -> None:
        """Mark a file as complete: any later write to it voids the recorded checks."""
        identity = FileIdentity.of(path.stat())
        self._files[identity.device, identity.inode] = identity

    def uses(self, old: Extent, new: Extent, exponent: int) -> Counter[Licence] | None:
        """Return the licences used in writing `new` from `old` times 2^-exponent; None if that was not
        recorded.
        """
        if self._files.get((new.file.device, new.file.inode)) != new.file:
            return None
        record = self._found.get((new.file.device, new.file.inode, new.offset))
        if record is None or record.source != old:
            return None
        written = record.data_type, record.size, record.exponent
        return record.uses.copy() if written == (new.data_type, new.size, exponent) else None
