"""Checks of large tensors, part by part, by threads that read and compare side by side."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.element_checks import Check
from amp_rewrite.certificate.tensors import Elements

_THREADS = min(4, os.cpu_count() or 1)
"""NumPy, onnxruntime and reading do without Python's lock."""

PART = 1 << 22
"""Elements of a part: 16 MiB of float32."""

_FEW = 1 << 10
"""Elements that are read where it is only to be seen that a tensor lies where it should."""


@dataclass(slots=True)
class Checked:
    """What was used in a part, and what is wrong with its first wrong element; empty where none is."""

    uses: Counter[Licence] = field(default_factory=Counter[Licence])
    problem: str = ""


def checked(check: Check, old: Elements, new: Elements) -> Iterator[Checked]:
    """What came of each part, in order; raises what reading raises."""

    def run(start: int) -> Checked:
        stop, found = min(start + PART, old.size), Checked()
        pairs = zip(old.read(start, stop), new.read(start, stop), strict=True)
        for at, (before, after) in zip(range(start, stop, tensors.BLOCK), pairs, strict=True):
            place = check(before, after, found.uses)
            if place is not None:
                found.problem = f"element {at + place:,} was {before[place]}, and is {after[place]}"
                break
        return found

    parts = range(0, old.size, PART)
    if len(parts) < 2:
        yield from map(run, parts)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(run, parts)


def agree_in_places(check: Check, old: Elements, new: Elements) -> bool:
    """Whether a few elements at the beginning of each part, and the last ones, are right."""
    starts = sorted({*range(0, old.size, PART), max(0, old.size - _FEW)})
    parts = [slice(start, min(start + _FEW, old.size)) for start in starts]
    return all(check(*pair, Counter()) is None for pair in zip(old.each(parts), new.each(parts), strict=True))
