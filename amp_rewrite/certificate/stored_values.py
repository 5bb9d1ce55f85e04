"""Whether a stored value is another, rounded to half where it is half."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import block_checks, tensors
from amp_rewrite.certificate.block_checks import Check
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.tensors import Array, Elements, Folder
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16, Half


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor, dense or sparse, and the folder that its file is in."""

    tensor: Any
    folder: Folder | None


@dataclass(slots=True)
class Comparison:
    """What is wrong with a value, empty if nothing is; what was used how often; the half type it became."""

    problem: str = ""
    uses: Counter[Licence] = field(default_factory=Counter[Licence])
    half: int | None = None


_NOTHING = Comparison()

HALVES = {int(half.dtype): half for half in (FLOAT16, BFLOAT16)}
"""The half types by their number in ONNX."""
_FLOAT = int(TensorProto.FLOAT)


def compare(original: Held, rewritten: Held, *, rank: bool = False) -> Comparison:
    """Whether `rewritten` holds the elements of `original`; with `rank` it may have more axes of size 1 at
    the beginning. Raises ModelError for what cannot be read.
    """
    a, b = original.tensor, rewritten.tensor
    if not (isinstance(a, TensorProto) and isinstance(b, TensorProto)):
        same = type(a) is type(b) and _sparse(original) == _sparse(rewritten)
        return Comparison("" if same else "the sparse values differ")
    if _identical(a, b):
        return _NOTHING
    before, after = tensors.dims(a), tensors.dims(b)
    if after != before and not (
        rank and after[-len(before) :] == before and set(after[: -len(before)]) <= {1}
    ):
        return Comparison(f"the shape {_shown(before)} is {_shown(after)}")
    if a.data_type == b.data_type == TensorProto.STRING:
        return Comparison("" if tensors.texts(a) == tensors.texts(b) else "the texts differ")
    check = _check(a.data_type, b.data_type)
    if check is None:
        names = [
            TensorProto.DataType.Name(t) if t in TensorProto.DataType.values() else str(t)
            for t in (a.data_type, b.data_type)
        ]
        return Comparison(f"the element type {names[0].lower()} is {names[1].lower()}")
    found = Comparison(half=b.data_type if a.data_type == _FLOAT and b.data_type in HALVES else None)
    both = tensors.elements(a, original.folder), tensors.elements(b, rewritten.folder)
    found.problem, found.uses = _checked(check, *both)
    if found.uses[Licence.RESTORED]:  # which holds of all elements, or of none
        found.problem, found.uses = _checked(_restored, *both)
    return found


def _checked(check: Check, old: Elements, new: Elements) -> tuple[str, Counter[Licence]]:
    """What is wrong with a value, empty if nothing is, and what was used: what holds of all of it, once."""
    uses = Counter[Licence]()
    for part in block_checks.checked(check, old, new):
        uses.update(part.uses)
        if part.problem:
            return part.problem, uses
    for licence in _OF_ALL & uses.keys():
        uses[licence] = 1
    return "", uses


_OF_ALL = frozenset((Licence.RESTORED, Licence.WIDENED))


def _identical(a: TensorProto, b: TensorProto) -> bool:
    """Whether small tensors are stored alike: most are, and this is quick."""
    if a.data_type != b.data_type or not (tensors.is_raw(a) and tensors.is_raw(b)):
        return False
    dims = a.dims
    return prod(dims) <= tensors.BLOCK and dims == b.dims and a.raw_data == b.raw_data


def compare_array(expected: Array, rewritten: Held) -> Comparison:
    """The same for a float32 array that was computed."""
    held = Held(_as_tensor(expected), None)
    return compare(held, rewritten)


def _as_tensor(array: Array) -> TensorProto:
    return TensorProto(dims=array.shape, data_type=_FLOAT, raw_data=array.astype("<f4").tobytes())


def _shown(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _sparse(held: Held) -> tuple[Any, ...]:
    sparse = held.tensor
    if isinstance(sparse, TensorProto):
        return ()
    parts = (sparse.values, sparse.indices)
    read = [[block.tobytes() for block in tensors.blocks(part, held.folder)] for part in parts]
    return (tuple(sparse.dims), sparse.values.data_type, tuple(sparse.indices.dims), read)


def _check(before: int, after: int) -> Check | None:
    if before == after:
        return _clamped_float if before == _FLOAT else _same
    if before == _FLOAT and after in HALVES:
        half = HALVES[after]
        return lambda old, new, uses: rounded(old, new, uses, half)
    if before in HALVES and after == _FLOAT:
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


def _restored(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
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
    wanted = rounding.convert(np.asarray(old, np.float32), half)
    given = new.view(np.uint16)
    differs = wanted.view(np.uint16) != given
    if differs.any():
        fill = np.copysign(np.float32(half.fill), old).astype(half.numpy).view(np.uint16)
        clamped = differs & _clamped(old, half) & (given == fill)
        uses[Licence.CLAMPED] += int(clamped.sum())
        differs &= ~clamped & ~(np.isnan(old) & np.isnan(new.astype(np.float32)))
    infinite = wanted.dtype.type(np.inf).view(np.uint16)
    if given.view(np.int16).max() >= infinite or given.max() >= infinite | _SIGN:  # else all are finite
        overflowed = ((given & ~_SIGN) == infinite) & np.isfinite(old)
        uses[Licence.OVERFLOWED] += int(overflowed.sum())
    return _first(differs)


_SIGN = np.uint16(0x8000)


def _widened(old: Array, new: Array, uses: Counter[Licence]) -> int | None:
    uses[Licence.WIDENED] += 1
    wide = old.astype(np.float32)
    wrong = wide.view(np.uint32) != np.ascontiguousarray(new).view(np.uint32)
    return _first(wrong & ~(np.isnan(wide) & np.isnan(new)))
