"""What the runs of a session show of values that are handed out, as long as it is nothing but their ends.

A run has hundreds of them, and to make an object for each takes longer than to run a small model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.running.array_extremes import Floats
from amp_rewrite.running.slots import Slot


class Tally:
    """The ends of values over runs; of each slot, over as many runs as had it added."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._lows, self._highs = np.full(len(slots), np.inf), np.full(len(slots), -np.inf)
        self._runs = np.zeros(len(slots), np.int64)

    def add(self, lows: Floats, highs: Floats, shown: Floats) -> None:
        """Adds the ends of the slots that are `shown`, in one run."""
        np.minimum(self._lows, lows, out=self._lows, where=shown)
        np.maximum(self._highs, highs, out=self._highs, where=shown)
        self._runs += shown

    def extremes(self) -> Iterator[tuple[str, Extremes]]:
        """The extremes of every value that was added, by name."""
        columns = (each.tolist() for each in (self._lows, self._highs, self._runs))
        for slot, low, high, runs in zip(self._slots, *columns, strict=True):
            if runs:
                yield from ((name, Extremes(low, high, runs)) for name in slot.names)
                for follower in slot.followers:
                    least, most = follower.ends(low, high)
                    yield follower.name, Extremes(least, most, runs)
