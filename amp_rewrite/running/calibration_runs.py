"""The runs of a calibration, sample by sample or side by side, and the sessions that they need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from amp_rewrite.errors import FeedError
from amp_rewrite.running import metrics
from amp_rewrite.running.measured_model import MeasuredModel, Measurement
from amp_rewrite.running.sessions import Feeds
from amp_rewrite.running.slots import Treatment
from amp_rewrite.running.tally import Tally

COUNTED = 2
"""The samples in which the elements of all values are counted, which takes longer than to find extremes;
later on only those of values that have elements which are not finite, or beyond float16.
"""

_REOPENED = 4
"""How often a session is opened again for further values to count; then the elements of all are counted."""

Named = tuple[str, Feeds]
"""The name of a sample in errors, and the sample."""


class CalibrationRuns:
    """The runs of a model, whose session is opened again when values are to be treated otherwise.

    What they show is in the measurements, and in a tally for each session.
    """

    def __init__(self, model: MeasuredModel) -> None:
        self._model = model
        self.tallies: list[Tally] = []
        self._done = 0
        self._reopened = 0
        self._counted: set[str] = set()
        self._alone = False

    def drawn(self, samples: Iterator[Named]) -> Sequence[Named]:
        """The next samples, as many as are run side by side: the first of them tells how large values are."""
        checked = map(_without_nan, samples)
        for where, feeds in checked:
            self._choose(feeds, where)
            left = COUNTED - self._done
            at_once = min(self._model.abreast, left) if left > 0 else self._model.abreast
            return [(where, feeds), *itertools.islice(checked, at_once - 1)]
        return ()

    def measure(self, samples: Sequence[Named]) -> Iterator[Measurement]:
        """What the runs on samples show, side by side; it is the same as of one after the other."""
        self._alone = len(samples) == 1
        if self._alone or not all(self._model.fits(feeds) for _, feeds in samples):
            yield from map(self._measure, samples)
            return
        self._prepare()
        counts, counted = self._done < COUNTED, frozenset(self._counted)
        shown = self._model.run_side_by_side(samples, counts=counts, counted=counted)
        for sample, found in zip(samples, shown, strict=True):
            if counts or len(counted) == len(self._counted):
                self._done += 1
                yield self._settled(found, sample)
            else:  # as the sample before showed more to count
                yield self._measure(sample)

    def _measure(self, sample: Named) -> Measurement:
        where, feeds = sample
        self._choose(feeds, where)
        self._prepare()
        self._done += 1
        found = self._model.run(feeds, where, counts=self._done <= COUNTED, counted=self._counted)
        return self._settled(found, sample)

    def _settled(self, found: Measurement, sample: Named) -> Measurement:
        """What a run shows; a further one, if elements must be counted after all: it may show more."""
        self._counted.update(name for name, seen in found.extremes.items() if seen.beyond or seen.not_finite)
        while self._model.can_count and not found.uncounted <= self._counted:
            self._counted |= found.uncounted
            self._reopened += 1
            self._open(counts=self._reopened >= _REOPENED)
            where, feeds = sample
            found = self._model.run(feeds, where, counts=False, counted=self._counted)
        self.tallies[-1].add(found.lows, found.highs, found.shown)
        return found

    def _choose(self, feeds: Feeds, where: str) -> None:
        """Chooses what is handed out, if what is chosen would be too large for a sample."""
        if not self._model.fits(feeds):
            self._model.choose(feeds, where)

    def _prepare(self) -> None:
        """Opens a session for the next sample, unless the one that is open will do."""
        if not self._model.is_open:
            self._open(counts=self._done < COUNTED)
        elif self._done == COUNTED and self._model.is_for_few:
            self._open(counts=False)

    def _open(self, *, counts: bool) -> None:
        """Opens a session in which elements are counted: of all values, or of those that leave float16."""
        can_count = self._model.can_count

        def treat(name: str) -> Treatment:
            return Treatment.COUNTED if can_count and (counts or name in self._counted) else Treatment.REDUCED

        self._model.open(treat, many=not counts, alone=self._alone)
        self.tallies.append(Tally(self._model.handed_out))


def _without_nan(sample: Named) -> Named:
    where, feeds = sample
    for name, value in feeds.items():
        parts: list[Any] = value if isinstance(value, list) else [value]
        arrays = (part for part in parts if isinstance(part, np.ndarray) and metrics.is_float(part))
        if any(np.isnan(array).any() for array in arrays):
            raise FeedError(f"input '{name}' holds NaN", where=where, remedy="leave this sample out")
    return sample
