"""The charts of a report: errors along the graph, magnitudes against the limits of half, the plans of a
search, and latencies.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.analysis.observed import Seen
from amp_rewrite.model import constants
from amp_rewrite.model.constants import StoredTensor
from amp_rewrite.numerics.half import Half
from amp_rewrite.reporting.pictures import WIDTH, Anchor, Dot, Drawable, Line, Picture, Rect, Text, Tone
from amp_rewrite.running.latency import Bench, Latency
from amp_rewrite.text import plural

_LEFT, _RIGHT = 46, 8
"""The margins of a chart; the left one holds the scale."""
_HEIGHT = 180
_LOWEST = -8
"""The lowest power of ten on a scale of errors, at which smaller errors are drawn too; float32's own rounding
is at -7.
"""


def _power(error: float) -> float:
    """Return the power of ten of an error, at least the lowest one of the scale."""
    return max(math.log10(error), _LOWEST) if error > 0 else _LOWEST


def _height(power: float, highest: int) -> float:
    """Return the height of a power of ten on a scale that ends at the highest one."""
    return _HEIGHT * (highest - min(power, highest)) / (highest - _LOWEST)


def _across(share: float) -> float:
    """Return the position of a share of the width, from the scale to the right edge."""
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _scale(highest: int, caption: str) -> Iterator[Drawable]:
    """Yield lines at every other power of ten, with their labels, and the caption below."""
    for power in range(_LOWEST, highest + 1, 2):
        y = _height(power, highest)
        yield Line(_LEFT, y, WIDTH - _RIGHT, y, Tone.LIGHT)
        label = f"1e{power}" if power > _LOWEST else f"≤1e{power}"
        yield Text(_LEFT - 8, y + 4, label, Anchor.END, tone=Tone.MUTED)
    yield Text(WIDTH - _RIGHT, _HEIGHT + 18, caption, Anchor.END, tone=Tone.MUTED)


@dataclass(frozen=True, slots=True)
class Point:
    """The relative error of one node, and its position along the graph, from 0 to 1."""

    position: float
    error: float
    non_finite: bool
    label: str


_HIGHEST = 1
"""The power of ten at which the scale of nodes ends."""
_COLUMNS = 240
"""Dots side by side; more would overlap."""


def errors(points: Iterable[Point], title: str = "Relative error of each node") -> Picture:
    """Return the error of every node in graph order; where nodes are dense, the worst of each column."""
    columns: dict[int, Point] = {}
    for point in points:
        column = int(point.position * _COLUMNS)
        worst = columns.get(column, point)
        columns[column] = max(worst, point, key=lambda each: (each.non_finite, each.error))
    dots = (_error_dot(columns[column]) for column in sorted(columns))
    return Picture(title, WIDTH, _HEIGHT + 24, (*_scale(_HIGHEST, "along the graph"), *dots))


def _error_dot(point: Point) -> Dot:
    x = _across(point.position)
    if point.non_finite:
        return Dot(x, 0.0, 3.5, Tone.BAD, f"{point.label}: not finite")
    y = _height(_power(point.error), _HIGHEST)
    return Dot(x, y, 2.2, Tone.HALF, f"{point.label}: {point.error:.1e}")


# Counts of numbers by binade, the interval between two powers of two: 1 and 1.5 are in binade 0.

Binades = Mapping[int, int]
"""Counts of numbers by binade, without zeros, infinities and NaN."""
_NONE: Mapping[Any, int] = MappingProxyType({})
_BIAS, _INFINITE = 127, 255
"""The exponents of 1, and of infinity and NaN, as float32 has them (IEEE 754)."""


def binades(array: NDArray[np.float32]) -> Counter[int]:
    """Return the binades of an array of floats."""
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    counts = np.bincount((bits >> 23) & _INFINITE, minlength=_INFINITE + 1)
    return Counter({power - _BIAS: int(counts[power]) for power in range(1, _INFINITE) if counts[power]})


def binades_of_stored(tensors: Iterable[StoredTensor]) -> Binades:
    """Return the binades of all stored numbers. Raises ModelError for a value that cannot be read."""
    counts: Counter[int] = Counter()
    for one in tensors:
        for block in constants.read(one.tensor):
            counts += binades(block)
    return counts


def binades_of_values(observed: Seen, exponents: Mapping[str, int] = _NONE) -> Binades:
    """Return the binades of observed values, stored as v * 2**-exponent: each value counts once, by its
    largest finite magnitude.
    """
    items = observed.items()
    return Counter(math.frexp(each.most)[1] - 1 - exponents.get(name, 0) for name, each in items)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The binades on the axis, from below a half type's smallest number to above its largest."""

    half: Half

    @property
    def first(self) -> int:
        """The lowest, a multiple of `step`."""
        return int(math.log2(self.half.smallest)) // self.step * self.step - self.step

    @property
    def last(self) -> int:
        """The highest."""
        return math.ceil(math.log2(self.half.largest)) + self.step

    @property
    def step(self) -> int:
        """The distance from one label to the next."""
        return 8 if self.half.largest < _WIDE else 32

    @property
    def limits(self) -> tuple[tuple[float, str, Anchor], ...]:
        """The powers of the smallest subnormal, the smallest normal and the largest number, and labels."""
        smallest, largest = math.log2(self.half.smallest), math.log2(self.half.largest)
        return (
            (smallest, "0 below", Anchor.END),
            (smallest + math.log2(self.half.integers) - 1, "subnormal below", Anchor.START),
            (largest, "infinite above", Anchor.MIDDLE),
        )

    def x(self, power: float) -> float:
        """Return the position of a power of two, clamped to the edges."""
        inside = min(max(power, self.first), self.last + 1)
        return (inside - self.first) / (self.last + 1 - self.first) * (WIDTH - _RIGHT)


_WIDE = 2.0**64
"""float16 ends at 2**16, bfloat16 as float32 does."""
_PANEL, _PANEL_ROW = 96, 156
"""The height of a histogram, without and with its title and labels."""
_VISIBLE = 1.5
"""The least height of a bar in pixels: a single number that overflows must be visible."""


def ranges(stored: Binades, observed: Binades, half: Half, rescaled: Binades = _NONE) -> Picture:
    """Return histograms of magnitudes against the limits of half: of stored numbers, and of node outputs in
    the original and, if any were, rescaled.
    """
    panels = [
        ("stored numbers", stored),
        ("node outputs, each by its largest magnitude", observed),
        ("the same, rescaled as in the result", rescaled),
    ]
    nonempty = [panel for panel in panels if panel[1]]
    shapes = (
        shape
        for row, (title, counts) in enumerate(nonempty)
        for shape in _panel(title, counts, _Axis(half), row * _PANEL_ROW + 36)
    )
    title = f"Magnitudes against the limits of {half.name}"
    return Picture(title, WIDTH, max(_PANEL_ROW * len(nonempty), 1), tuple(shapes))


def _panel(title: str, counts: Binades, axis: _Axis, top: float) -> Iterator[Drawable]:
    bottom, left, right = top + _PANEL, axis.x(axis.first), axis.x(axis.last + 1)
    low, high = axis.x(axis.limits[0][0]), axis.x(axis.limits[-1][0])
    yield Rect(left, top, low - left, _PANEL, Tone.LIGHT)
    yield Rect(high, top, right - high, _PANEL, Tone.LIGHT)
    yield Text(0, top - 22, title, bold=True)
    yield from _bars(counts, axis, bottom)
    yield Line(left, bottom, right, bottom, Tone.MUTED)
    for power, label, anchor in axis.limits:
        yield Line(axis.x(power), top, axis.x(power), bottom, Tone.MUTED, dash=True)
        yield Text(axis.x(power), top - 6, label, anchor, size=11, tone=Tone.MUTED)
    for power in range(axis.first, axis.last, axis.step):
        anchor = Anchor.START if power == axis.first else Anchor.MIDDLE
        yield Text(axis.x(power), bottom + 16, f"2^{power}", anchor, size=11, tone=Tone.MUTED)


def _bars(counts: Binades, axis: _Axis, bottom: float) -> Iterator[Drawable]:
    """Yield a bar for each binade; binades beyond the axis are counted at its ends."""
    heights: Counter[int] = Counter()
    for power, count in counts.items():
        heights[min(max(power, axis.first), axis.last)] += count
    highest, wide = max(heights.values()), axis.x(1) - axis.x(0)
    (low, *_), *_, (high, *_) = axis.limits
    for power, count in sorted(heights.items()):
        tall = max(count / highest * (_PANEL - 4), _VISIBLE)
        tone = Tone.HALF if low <= power < high else Tone.BAD
        yield Rect(axis.x(power) + wide / 16, bottom - tall, wide * 7 / 8, tall, tone)


# The plans that a search measured: predicted time against error, and the Pareto front.


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that was measured: its predicted seconds, its error, and its number of half units."""

    seconds: float
    error: float
    half: int


@dataclass(frozen=True, slots=True)
class Search:
    """The plans, the default one first, the error bound, and the sensitivity of each node."""

    plans: Sequence[Plan] = ()
    target: float = 0.0
    sensitivity: Mapping[str, float] = field(default_factory=dict[str, float])


def hull(plans: Iterable[Plan]) -> list[Plan]:
    """Return the Pareto front of time and error, by time."""
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda each: (each.seconds, each.error)):
        if not best or plan.error < best[-1].error:
            best.append(plan)
    return best


def searched(search: Search) -> Picture:
    """Return a dot for each plan, to the right by time and up by error; those on the hull are joined."""
    times = [plan.seconds for plan in search.plans]
    first, last = min(times), max(times)
    powers = [_power(plan.error) for plan in search.plans if math.isfinite(plan.error)]
    highest = max(math.ceil(max([*powers, _power(search.target)])), _LOWEST + 1)

    def place(plan: Plan) -> tuple[float, float]:
        power = _power(plan.error) if math.isfinite(plan.error) else highest
        return _across((plan.seconds - first) / (last - first or 1.0)), _height(power, highest)

    target = _height(_power(search.target), highest)
    segments = itertools.pairwise(map(place, hull(search.plans)))
    shapes = (
        *_scale(highest, "predicted time"),
        Line(_LEFT, target, WIDTH - _RIGHT, target, Tone.BAD, dash=True),
        *(Line(*one, *other, Tone.INK) for one, other in segments),
        *(_plan_dot(plan, place(plan), search.target) for plan in search.plans),
    )
    return Picture("Plans of the search: error by predicted time", WIDTH, _HEIGHT + 24, shapes)


def _plan_dot(plan: Plan, place: tuple[float, float], target: float) -> Dot:
    tone = Tone.HALF if plan.error <= target else Tone.GREY
    title = f"error {plan.error:.1e}, {plan.seconds * 1e3:.3g} ms, {plural(plan.half, 'part')} in half"
    return Dot(*place, 2.6, tone, title)


_BAR_ROW, _BAR = 44, 16
_NOTE = 120
"""Room for the note behind the longest bar."""


def latencies(bench: Bench) -> Picture:
    """Return the medians of a bench as bars, with whiskers to the 90th percentile; the first bar is grey."""
    longest = max((latency.p90 for latency in bench.latencies), default=0.0) or 1.0
    scale = (WIDTH - _NOTE) / longest
    bars = ((bench.title(latency), latency) for latency in bench.latencies)
    shapes = (shape for row, (title, bar) in enumerate(bars) for shape in _bar(title, bar, row, scale))
    title = f"Latency on {bench.device.value} in ms: median, whisker to p90"
    return Picture(title, WIDTH, max(_BAR_ROW * len(bench.latencies) - _BAR // 2, 1), tuple(shapes))


def _bar(title: str, latency: Latency, row: int, scale: float) -> Iterator[Drawable]:
    y = _BAR_ROW * row + _BAR
    end, tip = latency.p50 * scale, max(latency.p50, latency.p90) * scale
    yield Text(0, y - 4, title)
    yield Rect(0, y, end, _BAR, Tone.HALF if row else Tone.GREY)
    yield Line(end, y + _BAR / 2, tip, y + _BAR / 2, Tone.MUTED)
    note = f"{latency.p50:.3g} ms, {latency.speedup.median:.2f}x"
    yield Text(tip + 6, y + _BAR - 3, note, tone=Tone.MUTED)
