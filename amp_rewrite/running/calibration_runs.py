"""The runs of a calibration, sample by sample or side by side, and the sessions that they need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from amp_rewrite.errors import FeedError
from amp_rewrite.running import metrics
from amp_rewrite.running.measured_model import MeasuredModel
from amp_rewrite.running.measurements import Measurement
from amp_rewrite.running.sessions import Feeds
from amp_rewrite.running.slots import Treatment
from amp_rewrite.running.tally import Tally

COUNTED = 2
"""The samples in which the elements of all values are counted, which takes longer than to find extremes;
later on only those of values that have elements which are not finite, or beyond float16.
"""

_REOPENED = 4
"""How often a session is opened again for further values to count; then those of all are separated."""

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
        self._alone = self._counts = False

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
        while samples:
            shown = list(self._known(self._run(samples)))
            yield from shown
            samples = samples[len(shown) :]

    def _run(self, samples: Sequence[Named]) -> Sequence[Measurement]:
        """What one run of each sample shows; of the first alone, where they do not all fit side by side."""
        where, feeds = samples[0]
        is_alone = len(samples) == 1 or not all(self._model.fits(each) for _, each in samples)
        self._choose(feeds, where)
        self._prepare()
        counts, counted = self._done < COUNTED, frozenset(self._counted)
        if is_alone:
            return [self._model.run(feeds, where, counts=counts, counted=counted)]
        return self._model.run_side_by_side(samples, counts=counts, counted=counted)

    def _choose(self, feeds: Feeds, where: str) -> None:
        """Chooses what is handed out, if what is chosen would be too large for a sample."""
        if not self._model.fits(feeds):
            self._model.choose(feeds, where)

    def _known(self, shown: Sequence[Measurement]) -> Iterator[Measurement]:
        """Those up to one that shows more values to count, for which a session is opened."""
        counts, known = self._done < COUNTED, len(self._counted)
        for found in shown:
            if self._model.can_count and not found.uncounted <= self._counted:
                self._counted |= found.uncounted
                self._reopened += 1
                self._open(counts=counts)
                return
            if len(self._counted) > known and not counts:
                return  # as the one before showed more to count
            self._done += 1
            self._counted |= {name for name, seen in found.extremes.items() if seen.beyond or seen.not_finite}
            self.tallies[-1].add(found.lows, found.highs, found.shown)
            yield found

    def _prepare(self) -> None:
        """Opens a session for the next samples, unless the one that is open will do."""
        counts = self._done < COUNTED
        if not self._model.is_open or (self._counts and not counts and self._model.is_for_few):
            self._open(counts=counts)

    def _open(self, *, counts: bool) -> None:
        """Opens a session in which elements are counted: of all values, or of those that leave float16."""
        all_leave = self._reopened >= _REOPENED
        self._counts = counts

        def treat(name: str) -> Treatment:
            if self._model.can_count and (all_leave or name in self._counted):
                return Treatment.SEPARATED
            return Treatment.COUNTED if self._model.can_count and counts else Treatment.REDUCED

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
