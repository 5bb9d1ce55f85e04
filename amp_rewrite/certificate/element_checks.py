"""Whether the elements of a block are those of another, rounded to half where they are half."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.value_kinds import FLOAT
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16, Half

Array = NDArray[Any]

Check = Callable[[Array, Array, Counter[Licence]], int | None]
"""The position of the first element that is wrong in a block; None where none is. Counts what was used."""

HALVES = {int(half.dtype): half for half in (FLOAT16, BFLOAT16)}
"""The half types by their number in ONNX."""


def between(before: int, after: int) -> Check | None:
    """The check of elements of one type that became another; None where these may not differ so."""
    if before == after:
        return _clamped_float if before == FLOAT else _same
    if before == FLOAT and after in HALVES:
        half = HALVES[after]
        return lambda old, new, uses: rounded(old, new, uses, half)
    if before in HALVES and after == FLOAT:
        return _widened
    return None


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
    """Whether every element is what rounding to half, or clamping to it, and widening makes of it."""
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
    if _all_rounded(old, new, half):
        return None
    given, wanted = new.view(np.uint16), rounding.convert(old, half).view(np.uint16)
    differs = wanted != given
    if differs.any():
        fill = np.copysign(np.float32(half.fill), old).astype(half.numpy).view(np.uint16)
        clamped = differs & _clamped(old, half) & (given == fill)
        uses[Licence.CLAMPED] += int(clamped.sum())
        differs &= ~clamped & ~(np.isnan(old) & np.isnan(new.astype(np.float32)))
    overflowed = ((given & ~_SIGN) == _infinity(half)) & np.isfinite(old)
    uses[Licence.OVERFLOWED] += int(overflowed.sum())
    return _first(differs)


def _all_rounded(old: Array, new: Array, half: Half) -> bool:
    """Whether all is finite and as rounding makes it, as nearly always. No NaN becomes what is finite."""
    given, infinity = new.view(np.uint16), _infinity(half)
    if given.size and (given.view(np.int16).max() >= infinity or given.max() >= infinity | _SIGN):
        return False
    return np.array_equal(rounding.convert(old, half, nan=False).view(np.uint16), given)


_SIGN = np.uint16(0x8000)


def _infinity(half: Half) -> Any:
    return np.array(np.inf, half.numpy).view(np.uint16)[()]


def _widened(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    uses[Licence.WIDENED] += 1
    wide = old.astype(np.float32)
    wrong = wide.view(np.uint32) != np.ascontiguousarray(new).view(np.uint32)
    return _first(wrong & ~(np.isnan(wide) & np.isnan(new)))
