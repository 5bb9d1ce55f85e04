"""Checks of the blocks of large tensors, by threads while further blocks are read."""

from __future__ import annotations

import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.tensors import Array

Check = Callable[[Array, Array, Counter[Licence]], int | None]
"""The position of the first element that is wrong in a block; None where none is."""

Checked = tuple[int | None, Counter[Licence], Array, Array]
"""What a check found and used, and the blocks that it compared."""

_THREADS = min(4, os.cpu_count() or 1)
"""NumPy and onnxruntime compute without Python's lock."""


def checked(check: Check, pairs: Iterable[tuple[Array, Array]]) -> Iterator[Checked]:
    """What came of each pair of blocks, in order; raises what reading them raises."""

    def run(old: Array, new: Array) -> Checked:
        uses = Counter[Licence]()
        return check(old, new, uses), uses, old, new

    first = list(itertools.islice(source := iter(pairs), 2))
    if len(first) < 2:
        yield from itertools.starmap(run, first)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting = deque[Future[Checked]]()
        for old, new in itertools.chain(first, source):
            waiting.append(pool.submit(run, old, new))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)
