"""Checks of large tensors, part by part, by threads that read and compare side by side."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.tensors import Array, Elements

Check = Callable[[Array, Array, Counter[Licence]], int | None]
"""The position of the first element that is wrong in a block; None where none is."""

_THREADS = min(4, os.cpu_count() or 1)
"""NumPy, onnxruntime and reading do without Python's lock."""

PART = 1 << 22
"""Elements of a part: 16 MiB of float32."""


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
