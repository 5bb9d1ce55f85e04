"""What one run of a float32 model shows of its values, and how it follows from the numbers of its slots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.running import array_extremes
from amp_rewrite.running.array_extremes import Floats
from amp_rewrite.running.slots import Slot, Treatment


@dataclass(frozen=True, slots=True)
class Measurement:
    """The extremes of the values of one run, by name; of a value that was not computed, none.

    `uncounted` are the values that have elements which are not finite, or which float16 cannot hold, and
    whose elements were not counted: the extremes of those that are not finite are not known. Of values that
    are handed out, most have their ends in `lows` and `highs` alone: those that are `shown`.
    """

    extremes: dict[str, Extremes] = field(default_factory=dict[str, Extremes])
    uncounted: set[str] = field(default_factory=set[str])
    lows: Floats = field(default_factory=lambda: np.zeros(0))
    highs: Floats = field(default_factory=lambda: np.zeros(0))
    shown: Floats = field(default_factory=lambda: np.zeros(0, bool))

    def add(self, names: Sequence[str], extremes: Extremes) -> None:
        """Adds values; several that share a name, in the branches of an If, are joined."""
        for name in names if extremes.samples else ():
            known = self.extremes.get(name)
            self.extremes[name] = extremes if known is None else known.join(extremes).in_one_run()


def add_rows(found: Measurement, slots: Sequence[Slot], vectors: Sequence[Sequence[float]]) -> bool:
    """Adds what was reduced within a run; returns whether a sum is NaN."""
    is_broken = False
    for slot, low, high, sums in _rows(slots, vectors):
        if slot.treatment is Treatment.SEPARATED:
            found.add(slot.names, _separated(low, high, *sums[:-1]))
        elif slot.treatment is Treatment.COUNTED:
            _add_counted(found, slot, low, high, *sums)
        else:
            _add_reduced(found, slot, low, high)
        is_broken |= any(map(math.isnan, sums))
    return is_broken


def _add_counted(
    found: Measurement, slot: Slot, low: float, high: float, size: float, flushed: float, total: float
) -> None:
    if size and (math.isnan(total) or not array_extremes.fit(low, high)):
        found.uncounted.update(slot.names)
    elif size:
        found.add(slot.names, Extremes(low, high, counted=int(max(size, flushed)), flushed=int(flushed)))


def _add_reduced(found: Measurement, slot: Slot, low: float, high: float) -> None:
    if low > high:  # it is empty, and what is added to it may be
        found.uncounted.update(follower.name for follower in slot.followers if follower.padded)
    elif not array_extremes.fit(low, high):
        found.uncounted.update(slot.all_names)
    if -math.inf < low <= high < math.inf:
        found.add(slot.names, Extremes(low, high))
        for follower in slot.followers:
            found.add([follower.name], Extremes(*follower.ends(low, high)))


def _rows(
    slots: Sequence[Slot], numbers: Sequence[Sequence[float]]
) -> Iterator[tuple[Slot, float, float, Sequence[float]]]:
    """Each slot with the lowest and the highest element, and the sums."""
    if not slots:
        return
    highs, lows, sums = numbers
    at = 0
    for slot, low, high in zip(slots, lows, highs, strict=True):
        yield slot, low, high, sums[at : at + slot.sums]
        at += slot.sums


def _separated(low: float, high: float, *counts: float) -> Extremes:
    size, flushed, lost, large = map(int, counts)
    return Extremes(
        low,
        high,
        samples=int(size > 0),
        counted=max(size, lost + flushed + large),  # above 2^24 float32 rounds them
        beyond=large,
        flushed=flushed,
        not_finite=lost,
    )
