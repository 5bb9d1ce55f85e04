"""Whether elements of stored tensors are those of others, rounded to half where they are half.

Large tensors are checked while they are written to files: their proof need not read them again.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.value_kinds import FLOAT
from amp_rewrite.files.file_identity import FileIdentity
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.block_rounding import BlockRounding
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16, Half

Array = NDArray[Any]

Check = Callable[[Array, Array, Counter[Licence]], int | None]
"""The position of the first element that is wrong in a block; None where none is. Counts what was used."""

Rounding = Callable[[Array], Array | None]
"""A block rounded, which stands until the next is; None where more than one result would be right."""

HALVES = {int(half.dtype): half for half in (FLOAT16, BFLOAT16)}
"""The half types by their number in ONNX."""


def between(before: int, after: int) -> Check | None:
    """The check of elements of one type that became another; None where these may not differ so."""
    if before == after:
        return _clamped_float if before == FLOAT else _same
    if before == FLOAT and after in HALVES:
        return _RoundedBlocks(HALVES[after])
    if before in HALVES and after == FLOAT:
        return _widened
    return functools.partial(_converted, HALVES[after]) if before in HALVES and after in HALVES else None


def only_result(before: int, after: int) -> Rounding:
    """Rounds blocks of float32 elements whose values are all finite in half: no other bits would be right."""
    return _FiniteBlocks(HALVES[after]) if before == FLOAT and after in HALVES else lambda _: None


def _first(wrong: Array) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1)


def _same(old: Array, new: Array, _: Counter[Licence]) -> int | None:
    if old.dtype == new.dtype and old.tobytes() == new.tobytes():
        return None
    return _first((_bits(old) != _bits(new)).any(axis=1))


def _clamped_float(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    """The same bits, or all that leave the range of one half type clamped to it."""
    if np.array_equal(old.view(np.uint32), new.view(np.uint32)):
        return None
    differs = old.view(np.uint32) != new.view(np.uint32)
    for half in (FLOAT16, BFLOAT16):
        clamped = _clamped(old, half) & (new == np.copysign(np.float32(half.fill), old))
        if not (differs & ~clamped).any():
            uses[Licence.CLAMPED] += int(differs.sum())
            return None
    if any(_is_restored(old, new, half, Counter()) for half in (FLOAT16, BFLOAT16)):
        uses[Licence.RESTORED] += 1
        return None
    within = differs & ~_clamped(old, FLOAT16)
    return _first(within if within.any() else differs)


def restored(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    """The check of float32 elements that were rounded to half, or clamped to it, and widened again."""
    uses[Licence.RESTORED] = 1
    for half in (FLOAT16, BFLOAT16):
        found = Counter[Licence]()
        if _is_restored(old, new, half, found):
            uses.update(found)
            return None
    return int(np.argmax(old.view(np.uint32) != new.view(np.uint32)))


def _is_restored(old: Array, new: Array, half: Half, uses: Counter[Licence]) -> bool:
    """Return whether every element is what rounding to half, or clamping to it, and widening makes of it."""
    with np.errstate(all="ignore"):
        given = new.astype(half.numpy)
    exact = (given.astype(np.float32).view(np.uint32) == new.view(np.uint32)) | np.isnan(new)
    return bool(exact.all()) and rounded(old, given, uses, half) is None


def _clamped(old: Array, half: Half) -> Array:
    return np.isfinite(old) & (np.abs(old) > half.largest)


def rounded(old: Array, new: Array, uses: Counter[Licence], half: Half) -> int | None:
    """The position of the first element that is not what rounding to half makes of it, or clamping to its
    range; None where none is. Counts what was used.
    """
    old = np.asarray(old, np.float32)
    if _is_finite(new, half) and _are(rounding.convert(old, half, nan=False), new):
        return None
    return _first_not_rounded(old, new, uses, half)


def _first_not_rounded(old: Array, new: Array, uses: Counter[Licence], half: Half) -> int | None:
    given, wanted = new.view(np.uint16), rounding.convert(old, half).view(np.uint16)
    differs = wanted != given
    if differs.any():
        fill = np.copysign(np.float32(half.fill), old).astype(half.numpy).view(np.uint16)
        clamped = differs & _clamped(old, half) & (given == fill)
        uses[Licence.CLAMPED] += int(clamped.sum())
        lifted = differs & _lifted(old, new, half)
        uses[Licence.LIFTED] += int(lifted.sum())
        differs &= ~clamped & ~lifted & ~(np.isnan(old) & np.isnan(new.astype(np.float32)))
    overflowed = ((given & ~_SIGN) == _infinity(half)) & np.isfinite(old)
    uses[Licence.OVERFLOWED] += int(overflowed.sum())
    return _first(differs)


def _lifted(old: Array, new: Array, half: Half) -> Array:
    """Positions of numbers other than 0 that were raised to one of float16's two least, of their sign.

    Converters do so that nothing becomes 0: onnxruntime's to 2^-24, onnxconverter-common's to 1e-7.
    """
    if half is not FLOAT16:
        return np.zeros(old.shape, bool)
    size, raised = np.abs(old), new.astype(np.float32)
    found = [(size < least) & (np.abs(raised) == least) for least in (half.smallest, 2 * half.smallest)]
    return (old != 0) & (np.signbit(old) == np.signbit(raised)) & (found[0] | found[1])


def _are(wanted: Array, given: Array) -> bool:
    return np.array_equal(wanted.view(np.uint16), given.view(np.uint16))


def _is_finite(new: Array, half: Half) -> bool:
    """Return whether all elements are finite, as nearly always; a NaN may have any bits."""
    given, infinity = new.view(np.uint16), _infinity(half)
    if not np.bitwise_or.reduce(given, axis=None) & _TWO:  # one pass over most weights, in place of two
        return True
    return bool(given.view(np.int16).max() < infinity and given.max() < infinity | _SIGN)


class _FiniteBlocks(threading.local):
    """A `Rounding` in memory that each thread uses again."""

    def __init__(self, half: Half) -> None:
        self._half, self._round = half, BlockRounding(half)

    def __call__(self, old: Array) -> Array | None:
        new = self._round(old)
        return new if _is_finite(new, self._half) else None


class _RoundedBlocks(threading.local):
    """`rounded` for one block after another, in memory that each thread uses again."""

    def __init__(self, half: Half) -> None:
        self._half, self._only_result = half, _FiniteBlocks(half)
        self._same = np.empty(0, bool)

    def __call__(self, old: Array, new: Array, uses: Counter[Licence]) -> int | None:
        """As a `Check`."""
        wanted = self._only_result(old)
        if wanted is not None and self._equal(wanted.view(np.uint16), new.view(np.uint16)):
            return None
        return _first_not_rounded(old, new, uses, self._half)

    def _equal(self, wanted: Array, given: Array) -> bool:
        if wanted.size % _AT_ONCE:
            return np.array_equal(wanted, given)
        if self._same.size != wanted.size // _AT_ONCE:
            self._same = np.empty(wanted.size // _AT_ONCE, bool)
        return bool(np.equal(wanted.view(np.uint64), given.view(np.uint64), out=self._same).all())


_AT_ONCE = 4
"""Halves in what is compared at once."""

_SIGN = np.uint16(0x8000)
_TWO = np.uint16(0x4000)
"""The bit of either half type that what is 2 or more has, of any sign, and nothing that is less."""


def _infinity(half: Half) -> Any:
    return np.array(np.inf, half.numpy).view(np.uint16)[()]


def _converted(half: Half, old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    """Of one half type: as rounding to the other makes it, with the licences of that."""
    uses[Licence.CONVERTED] += 1
    return rounded(old, new, uses, half)


def _widened(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    uses[Licence.WIDENED] += 1
    wide = old.astype(np.float32)
    wrong = wide.view(np.uint32) != np.ascontiguousarray(new).view(np.uint32)
    return _first(wrong & ~(np.isnan(wide) & np.isnan(new)))


# ---- tensors that are checked while they are written


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the elements of a tensor lie: from which byte of which file on, of which type, and how many."""

    file: FileIdentity
    offset: int
    data_type: int
    size: int


@dataclass(frozen=True, slots=True)
class _Written:
    """What was written to a file, and which licences it used."""

    source: Extent
    data_type: int
    size: int
    uses: Counter[Licence]


_Start = tuple[int, int, int]
"""A file's device and inode, and a byte of it."""


class WrittenTensors:
    """What was found of tensors while they were written; of a file that has changed since, nothing."""

    def __init__(self) -> None:
        self._found: dict[_Start, _Written] = {}
        self._files: dict[tuple[int, int], FileIdentity] = {}
        self._check = functools.cache(between)  # whose memory serves each tensor of a thread
        self._only_result = functools.cache(only_result)

    def write(
        self,
        file: BinaryIO,
        data_type: int,
        source: Extent,
        blocks: Iterable[Array],
        convert: Callable[[Array], Array],
    ) -> None:
        """Writes a tensor of a type to a file, from blocks of `source`: as the proof itself rounds a block
        where no other bits would be right, else as `convert` makes it, which is checked.

        What is wrong with a block is found where the tensor is compared: it is only not noted here. Raises
        OSError.
        """
        check = self._check(source.data_type, data_type)
        only_result = self._only_result(source.data_type, data_type)
        start, uses, size, right = file.tell(), Counter[Licence](), 0, check is not None
        for before in blocks:
            after = only_result(before)
            if after is None:
                after = convert(before)
                right = right and check is not None and check(before, after, uses) is None
            file.write(after.astype(after.dtype.newbyteorder("<"), copy=False).view(np.uint8).data)
            size += after.size
        if right and size == source.size and Licence.RESTORED not in uses:  # which holds of a whole tensor
            found = os.fstat(file.fileno())
            written = _Written(source, data_type, size, uses)
            self._found[found.st_dev, found.st_ino, start] = written

    def close(self, path: Path) -> None:
        """Says that a file is complete: whoever writes to it now makes what was found of it worthless."""
        found = FileIdentity.of(path.stat())
        self._files[found.device, found.inode] = found

    def uses(self, old: Extent, new: Extent) -> Counter[Licence] | None:
        """The licences that `new` used where it was written from `old`; None where that was not seen."""
        if self._files.get((new.file.device, new.file.inode)) != new.file:
            return None
        found = self._found.get((new.file.device, new.file.inode, new.offset))
        if found is None or (found.source, found.data_type, found.size) != (old, new.data_type, new.size):
            return None
        return found.uses.copy()
