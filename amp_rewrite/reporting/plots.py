"""Plots of a rewrite: errors along the graph, and magnitudes against the limits of half."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amp_rewrite.analysis.observed import Seen
from amp_rewrite.numerics.half import Half
from amp_rewrite.reporting.binades import Binades
from amp_rewrite.reporting.pictures import (
    WIDTH,
    Anchor,
    Dot,
    Drawable,
    Line,
    Picture,
    Rect,
    Text,
    Tone,
)

_LEFT, _RIGHT = 46, 8
"""The margins of the plot; the left one holds the scale."""


@dataclass(frozen=True, slots=True)
class Point:
    """The relative error of one node, and its position along the graph, from 0 to 1."""

    position: float
    error: float
    non_finite: bool
    label: str


_ERROR_HEIGHT = 180
_COLUMNS = 240
"""Dots side by side; more would overlap."""
_LOWEST, _HIGHEST = -8, 1
"""The powers of ten that bound the scale; float32's own rounding is at -7."""


def errors(points: Iterable[Point], title: str = "Relative error of each node") -> Picture:
    """The error of every node in graph order; where nodes are dense, the worst of each column."""
    dots = [_error_dot(point) for point in _worst_of_columns(points)]
    grid = _grid(range(_LOWEST, _HIGHEST + 1, 2), _ERROR_HEIGHT)
    caption = Text(WIDTH - _RIGHT, _ERROR_HEIGHT + 18, "along the graph", Anchor.END, tone=Tone.MUTED)
    return Picture(title, WIDTH, _ERROR_HEIGHT + 24, (*grid, caption, *dots))


def _worst_of_columns(points: Iterable[Point]) -> list[Point]:
    columns: dict[int, list[Point]] = {}
    for point in points:
        columns.setdefault(int(point.position * _COLUMNS), []).append(point)
    return [max(columns[i], key=lambda point: (point.non_finite, point.error)) for i in sorted(columns)]


def _error_dot(point: Point) -> Dot:
    x = _LEFT + point.position * (WIDTH - _LEFT - _RIGHT)
    if point.non_finite:
        return Dot(x, 0.0, 3.5, Tone.BAD, f"{point.label}: not finite")
    power = math.log10(point.error) if point.error > 0 else _LOWEST
    return Dot(x, _height(power, _ERROR_HEIGHT), 2.2, Tone.HALF, f"{point.label}: {point.error:.1e}")


def _height(power: float, height: float) -> float:
    inside = min(max(power, _LOWEST), _HIGHEST)
    return height * (_HIGHEST - inside) / (_HIGHEST - _LOWEST)


def _grid(powers: Iterable[int], height: float) -> Iterator[Drawable]:
    for power in powers:
        y = _height(power, height)
        yield Line(_LEFT, y, WIDTH - _RIGHT, y, Tone.LIGHT)
        label = f"1e{power}" if power > _LOWEST else f"≤1e{power}"
        yield Text(_LEFT - 8, y + 4, label, Anchor.END, tone=Tone.MUTED)


def binades_of_values(observed: Seen) -> Binades:
    """The binades of observed values: each value counts once, by its largest finite magnitude."""
    return Counter(math.frexp(found.most)[1] - 1 for found in observed.values())


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
        """From one label to the next."""
        return 8 if self.half.largest < _WIDE else 32

    def x(self, power: float) -> float:
        """The position of a power of two, clamped to the edges."""
        inside = min(max(power, self.first), self.last + 1)
        return (inside - self.first) / (self.last + 1 - self.first) * (WIDTH - _RIGHT)


_WIDE = 2.0**64
"""float16 ends at 2**16, bfloat16 as float32 does."""
_PANEL, _ROW = 96, 156
"""The height of a histogram, without and with its title and labels."""


def ranges(stored: Binades, observed: Binades, half: Half) -> Picture:
    """Histograms of magnitudes against the limits of half: of stored numbers, and of node outputs."""
    panels = [("stored numbers", stored), ("node outputs, each by its largest magnitude", observed)]
    drawn = [panel for panel in panels if panel[1]]
    shapes = (
        shape
        for row, (title, binades) in enumerate(drawn)
        for shape in _panel(title, binades, _Axis(half), row * _ROW + 36)
    )
    title = f"Magnitudes against the limits of {half.name}"
    return Picture(title, WIDTH, max(_ROW * len(drawn), 1), tuple(shapes))


def _panel(title: str, binades: Binades, axis: _Axis, top: float) -> Iterator[Drawable]:
    bottom, left, right = top + _PANEL, axis.x(axis.first), axis.x(axis.last + 1)
    limits = _limits(axis.half)
    low, high = axis.x(limits[0].power), axis.x(limits[-1].power)
    yield Rect(left, top, low - left, _PANEL, Tone.LIGHT)
    yield Rect(high, top, right - high, _PANEL, Tone.LIGHT)
    yield Text(0, top - 22, title, bold=True)
    yield from _bars(binades, axis, bottom)
    yield Line(left, bottom, right, bottom, Tone.MUTED)
    for limit in limits:
        yield Line(axis.x(limit.power), top, axis.x(limit.power), bottom, Tone.MUTED, dash=True)
        yield Text(axis.x(limit.power), top - 6, limit.label, limit.anchor, size=11, tone=Tone.MUTED)
    for power in range(axis.first, axis.last, axis.step):
        anchor = Anchor.START if power == axis.first else Anchor.MIDDLE
        yield Text(axis.x(power), bottom + 16, f"2^{power}", anchor, size=11, tone=Tone.MUTED)


@dataclass(frozen=True, slots=True)
class _RangeLimit:
    power: float
    label: str
    anchor: Anchor


def _limits(half: Half) -> tuple[_RangeLimit, ...]:
    """The smallest subnormal, the smallest normal, and the largest number."""
    smallest, largest = math.log2(half.smallest), math.log2(half.largest)
    return (
        _RangeLimit(smallest, "0 below", Anchor.END),
        _RangeLimit(smallest + math.log2(half.integers) - 1, "subnormal below", Anchor.START),
        _RangeLimit(largest, "infinite above", Anchor.MIDDLE),
    )


def _bars(binades: Binades, axis: _Axis, bottom: float) -> Iterator[Drawable]:
    """A bar for each binade; binades beyond the axis are counted at its ends."""
    shown: Counter[int] = Counter()
    for power, count in binades.items():
        shown[min(max(power, axis.first), axis.last)] += count
    highest, wide = max(shown.values()), axis.x(1) - axis.x(0)
    low, *_, high = (limit.power for limit in _limits(axis.half))
    for power, count in sorted(shown.items()):
        tall = max(count / highest * (_PANEL - 4), _VISIBLE)
        tone = Tone.HALF if low <= power < high else Tone.BAD
        yield Rect(axis.x(power) + wide / 16, bottom - tall, wide * 7 / 8, tall, tone)


_VISIBLE = 1.5
"""The least height of a bar in pixels: a single number that overflows must be visible."""
