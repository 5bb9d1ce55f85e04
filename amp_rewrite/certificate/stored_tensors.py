"""Comparison of constants, rounded to half where they are half."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import element_checks, tensors
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.element_checks import HALVES, Array, Check, Clamps, rounded
from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.certificate.value_kinds import FLOAT
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import FLOAT16


class Held(NamedTuple):
    """A tensor, dense or sparse, and the folder of its external data."""

    tensor: Any
    folder: Folder | None


@dataclass(slots=True)
class TensorComparison:
    """The fault of a value, empty if there is none; the uses of licences; the half type that it became; the e
    for which it stores v * 2^-e. It does so for every e from `least` on, unless that is None.
    """

    problem: str = ""
    uses: Counter[Licence] = field(default_factory=Counter[Licence])
    half: int | None = None
    exponent: int = 0
    least: int | None = None
    clamps: Clamps | None = None


_NOTHING = TensorComparison()
_ROUNDED = {dtype: TensorComparison(half=dtype) for dtype in HALVES}


def compare(original: Held, rewritten: Held, *, rank: bool = False) -> TensorComparison:
    """Compare the elements of `rewritten` and `original`; with `rank` it may have additional leading axes of
    size 1. Raises ModelError for values that cannot be read.
    """
    a, b = original.tensor, rewritten.tensor
    if not (isinstance(a, TensorProto) and isinstance(b, TensorProto)):
        same = type(a) is type(b) and _sparse(original) == _sparse(rewritten)
        return TensorComparison("" if same else "the sparse values differ")
    if (quick := _of_small(a, b)) is not None:
        return quick
    before, after = tensors.dims(a), tensors.dims(b)
    if after != before and not (
        rank and after[-len(before) :] == before and set(after[: -len(before)]) <= {1}
    ):
        return TensorComparison(f"the shape {_format_shape(before)} is {_format_shape(after)}")
    if a.data_type == b.data_type == TensorProto.STRING:
        return TensorComparison("" if list(a.string_data) == list(b.string_data) else "the texts differ")
    types = a.data_type, b.data_type
    check = element_checks.between(*types)
    if check is None:
        names = [
            TensorProto.DataType.Name(t) if t in TensorProto.DataType.values() else str(t) for t in types
        ]
        return TensorComparison(f"the element type {names[0].lower()} is {names[1].lower()}")
    old, new = (tensors.elements(each.tensor, each.folder) for each in (original, rewritten))
    return _of_arrays(check, old, new, types)


def _of_arrays(check: Check, old: Array, new: Array, types: tuple[int, int]) -> TensorComparison:
    """Compare elements as they are, times a power of two, or clamped."""
    comparison = _of_elements(check, old, new, types)
    if comparison.problem and types[0] == FLOAT:
        others = (each for each in _otherwise(check, old, new, types) if not each.problem)
        comparison = next(others, comparison)
    if not comparison.problem and comparison.uses[Licence.CLAMPED]:
        comparison.clamps = element_checks.find_clamps(_in_blocks(old, new))
        if comparison.clamps is None:
            comparison.problem = "it is clamped to several numbers, or beside larger ones"
    if not comparison.problem and types[1] == TensorProto.FLOAT16 and new.size <= _FEW:
        comparison.least = element_checks.least_exponent(old, new)
    return comparison


def _otherwise(check: Check, old: Array, new: Array, types: tuple[int, int]) -> Iterator[TensorComparison]:
    """Yield the comparisons with float32 elements times a power of two, by the first block that tells one, or
    clamped as others do.
    """
    exponents = (element_checks.exponent_between(*pair) for pair in _in_blocks(old, new))
    if exponent := next((each for each in exponents if each is not None), 0):
        yield _of_elements(check, old, new, types, exponent)
    for fill in element_checks.OTHER_FILLS if types[1] == TensorProto.FLOAT16 else ():
        yield _of_elements(partial(rounded, FLOAT16, fill=fill), old, new, types)


def _in_blocks(old: Array, new: Array) -> Iterator[tuple[Array, Array]]:
    return zip(tensors.blocks(old), tensors.blocks(new), strict=True)


def _of_elements(
    check: Check, old: Array, new: Array, types: tuple[int, int], exponent: int = 0
) -> TensorComparison:
    before, after = types
    whole = element_checks.check_restored
    if exponent:
        check, whole = (element_checks.rescaled(each, exponent) for each in (check, whole))
    problem, uses = _check_all(check, old, new)
    if problem and before == after == FLOAT:
        uses = Counter[Licence]()
        place = whole(old, new, uses)
        problem = "" if place is None else _difference(place, old, new)
    licence = _LICENCES.get((before in HALVES, after in HALVES))
    if licence is not None and before != after:
        uses[licence] = 1
    return TensorComparison(problem, uses, after if after in HALVES and after != before else None, exponent)


_LICENCES = {(True, False): Licence.WIDENED, (True, True): Licence.CONVERTED}
"""The licences for whole values, by whether they were half and are."""


def _check_all(check: Check, old: Array, new: Array) -> tuple[str, Counter[Licence]]:
    """Return the fault of a value, empty if there is none, and the licences used."""
    uses = Counter[Licence]()
    for place, used in check_parts(check, old, new):
        uses.update(used)
        if place is not None:
            return _difference(place, old, new), uses
    return "", uses


def _difference(place: int, old: Array, new: Array) -> str:
    return f"element {place:,} was {old[place]}, and is {new[place]}"


def _of_small(a: TensorProto, b: TensorProto) -> TensorComparison | None:
    """Return the comparison of small tensors with the same raw data, or rounded to half: the common cases,
    and a fast path. None for others.
    """
    if a.dims != b.dims or min(a.dims, default=0) < 0 or not (tensors.is_raw(a) and tensors.is_raw(b)):
        return None
    old, new, half = a.raw_data, b.raw_data, HALVES.get(b.data_type)
    if a.data_type == b.data_type:
        return _NOTHING if len(old) <= tensors.BLOCK and old == new else None
    if half is None or a.data_type != FLOAT or not len(old) == 4 * prod(a.dims) == 2 * len(new) <= _SMALL:
        return None
    before = np.frombuffer(old, "<f4")
    after = rounding.convert(before, half)
    if after.tobytes() != new or not np.abs(before).max(initial=0) <= half.largest:
        return None
    may_be_least = b.data_type == TensorProto.FLOAT16 and new[:2] in _LEAST
    least = element_checks.least_exponent(before, after) if may_be_least else None
    return _ROUNDED[b.data_type] if least is None else TensorComparison(half=b.data_type, least=least)


_SMALL = 1 << 12
_LEAST = (b"\1\0", b"\1\x80", b"\0\0", b"\0\x80")
"""The least numbers of float16, and zeros, of either sign."""


def _format_shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _sparse(value: Held) -> tuple[Any, ...]:
    sparse = value.tensor
    if isinstance(sparse, TensorProto):
        return ()
    parts = (sparse.values, sparse.indices)
    contents = [tensors.elements(part, value.folder).tobytes() for part in parts]
    return (tuple(sparse.dims), sparse.values.data_type, tuple(sparse.indices.dims), contents)


# ---- large tensors, in parts that threads read and compare in parallel


_THREADS = min(4, os.cpu_count() or 1)
"""The number of threads; NumPy, onnxruntime and file reads release Python's lock."""

PART = 1 << 22
"""The elements of a part: 16 MiB of float32."""

_FEW = 1 << 10
"""The most elements of a bound."""


def check_parts(check: Check, old: Array, new: Array) -> Iterator[tuple[int | None, Counter[Licence]]]:
    """Yield the place of the first wrong element of each part, in order, None if there is none, and the
    licences used.
    """

    def run(start: int) -> tuple[int | None, Counter[Licence]]:
        uses, parts = Counter[Licence](), (flat[start : start + PART] for flat in (old, new))
        for block, (before, after) in enumerate(_in_blocks(*parts)):
            place = check(before, after, uses)
            if place is not None:
                return start + block * tensors.BLOCK + place, uses
        tensors.release(old)
        tensors.release(new)
        return None, uses

    parts = range(0, old.size, PART)
    if len(parts) < 2:
        yield from map(run, parts)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(run, parts)
