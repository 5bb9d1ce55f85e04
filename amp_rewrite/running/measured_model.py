"""A float32 model in a session that gives the extremes of all its float values, and counts their elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.running import array_extremes, metrics, reductions, sessions
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.light_model import LightModel
from amp_rewrite.running.reductions import Slot, Treat, Treatment
from amp_rewrite.running.sessions import Device, Feeds
from amp_rewrite.running.value_reductions import SINCE_COUNTS


@dataclass(frozen=True, slots=True)
class Measurement:
    """The extremes of the values of one run, by name; of a value that was not computed, none.

    `uncounted` are the values that have elements which are not finite, or which float16 cannot hold, and
    whose elements were not counted: the extremes of those that are not finite are not known.
    """

    extremes: dict[str, Extremes] = field(default_factory=dict[str, Extremes])
    uncounted: set[str] = field(default_factory=set[str])

    def add(self, names: Sequence[str], extremes: Extremes) -> None:
        """Adds values; several that share a name, in the branches of an If, are joined."""
        for name in names if extremes.samples else ():
            known = self.extremes.get(name)
            self.extremes[name] = extremes if known is None else known.join(extremes).in_one_run()


class MeasuredModel:
    """A model in a session that gives numbers of its float values.

    Opening raises MissingPackageError and ModelError, running RunError. `can_count` says whether elements can
    be counted within a run.
    """

    def __init__(self, model: LightModel, device: Device, libraries: Libraries = ()) -> None:
        self._model = model
        self._device = device
        self._libraries = libraries
        self._session: Any = None
        self._slots: Sequence[Slot] = ()
        self.can_count = model.opset >= SINCE_COUNTS

    def open(self, treat: Treat, *, optimised: bool = False) -> None:
        """Opens a session, in place of the last one, in which values are treated so.

        For many runs it pays to have it `optimised`.
        """
        self._session = None  # first: two of them would take twice the memory
        model, proto = self._model, self._model.copy()
        self._slots = reductions.add(proto, model.types, model.opset, treat)
        self._session = sessions.open_measuring_session(
            proto, self._device, model.folder, self._libraries, optimised=optimised
        )

    def run(self, feeds: Feeds, where: str, *, counts: bool) -> Measurement:
        """What one run shows; with `counts`, the elements of its inputs are counted."""
        found, is_broken = Measurement(), False
        for name, array in self._given(feeds):
            found.add([name], array_extremes.of(array, counts=counts))
        for slot, low, high, sums in _rows(self._slots, self._numbers(feeds, where)):
            if slot.treatment is Treatment.COUNTED:
                found.add(slot.names, _counted(low, high, *sums[:-1]))
            else:
                _add_reduced(found, slot, low, high)
            is_broken |= any(map(math.isnan, sums))
        if is_broken:  # beside a NaN, ReduceMax and ReduceMin leave other elements out
            reduced = (slot for slot in self._slots if slot.treatment is Treatment.REDUCED)
            found.uncounted.update(*(slot.names + slot.cut for slot in reduced))
        return found

    def _numbers(self, feeds: Feeds, where: str) -> list[list[float]]:
        """The numbers of one run, as three lists."""
        outputs = sessions.run_session(self._session, feeds, where=where).values()
        return [output.tolist() for output in outputs] if self._slots else []

    def _given(self, feeds: Feeds) -> Iterator[tuple[str, Any]]:
        types: Mapping[str, int] = self._model.types[0]
        for name, value in feeds.items():
            if name in types and isinstance(value, np.ndarray) and metrics.is_float(value):
                yield name, value


def _add_reduced(found: Measurement, slot: Slot, low: float, high: float) -> None:
    if not (low > high or -FLOAT16.largest <= low <= high <= FLOAT16.largest):
        found.uncounted.update(slot.names, slot.cut)
    if -math.inf < low <= high < math.inf:
        found.add(slot.names, Extremes(low, high))
        found.add(slot.cut, Extremes(max(low, 0.0), max(high, 0.0)))


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


def _counted(low: float, high: float, *counts: float) -> Extremes:
    size, lost, flushed, large = map(int, counts)
    return Extremes(
        low,
        high,
        samples=int(size > 0),
        counted=max(size, lost + flushed + large),  # above 2^24 float32 rounds them
        beyond=large,
        flushed=flushed,
        not_finite=lost,
    )
