"""Parts of a set of units, the one that is worth most first; one that cannot be taken is halved."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable


class Parts:
    """Runs of units next to each other, of which each is taken whole or in halves of the same worth."""

    def __init__(self, units: Iterable[int], worth: Callable[[int], float]) -> None:
        self._worth = worth
        self._queue: list[tuple[float, tuple[int, ...]]] = []
        self._push(tuple(sorted(units)))

    def next(self) -> tuple[int, ...]:
        """The part that is worth most, taken out of the queue; empty if there is none left."""
        return heapq.heappop(self._queue)[1] if self._queue else ()

    def split(self, part: tuple[int, ...]) -> None:
        """Puts the halves of a part back; a single unit has none."""
        if len(part) > 1:
            sums = list(itertools.accumulate(map(self._worth, part)))
            middle = sum(1 for each in sums[:-1] if each <= sums[-1] / 2)
            middle = min(max(middle, 1), len(part) - 1)
            self._push(part[:middle])
            self._push(part[middle:])

    def _push(self, part: tuple[int, ...]) -> None:
        if part:
            heapq.heappush(self._queue, (-sum(map(self._worth, part)), part))
