"""Samples that leave the ranges of inputs on which what is proven rests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from amp_rewrite.analysis.observed import Seen
from amp_rewrite.bounds.given import InputRange, Source
from amp_rewrite.bounds.unit_ranges import RangeCounts
from amp_rewrite.running.sessions import Feeds


class GivenInputs:
    """The least and the greatest element of each input in the samples so far."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[float, float]] = {}

    def add(self, feeds: Feeds) -> None:
        """Takes a sample."""
        for name, value in feeds.items():
            if isinstance(value, np.ndarray) and value.size and value.dtype.kind not in "OSUb":
                low, high = self._ends.get(name, (np.inf, -np.inf))
                self._ends[name] = min(low, float(value.min())), max(high, float(value.max()))

    def warnings(self, ranges: RangeCounts | None, seen: Seen) -> Iterator[str]:
        """A line for each input that leaves its range, here or in what was `seen` of its values."""
        for each in ranges.inputs if ranges is not None else ():
            ends = [self._ends[each.name]] if each.name in self._ends else []
            ends += [(seen[each.name].low, seen[each.name].high)] if each.name in seen else []
            low, high = min((end[0] for end in ends), default=0.0), max((end[1] for end in ends), default=0.0)
            if ends and (low < each.low or high > each.high):
                yield _line(each, low, high)


def _line(given: InputRange, low: float, high: float) -> str:
    what = "declared" if given.source is Source.DECLARED else "assumed"
    leaves = f"input '{given.name}' is between {low:g} and {high:g} in the samples, and {what} to be between"
    return f"{leaves} {given.low:g} and {given.high:g}, on which what is proven rests; give --range"
