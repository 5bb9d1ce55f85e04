"""Pictures of a rewrite: the error along the graph, and how large numbers are beside what half can hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.analysis.observed import Observed
from amp_rewrite.model import tensor_blocks
from amp_rewrite.model.constants import StoredTensor
from amp_rewrite.numerics.half import Half
from amp_rewrite.reporting.pictures import (
    WIDTH,
    Anchor,
    Dot,
    Line,
    Picture,
    Rect,
    Shape,
    Text,
    Tone,
)

_LEFT, _RIGHT = 46, 8
"""Beside the field: the labels of its scale."""


@dataclass(frozen=True, slots=True)
class Point:
    """The error of one node: its place along the graph, from 0 to 1, and its relative L2 error."""

    place: float
    error: float
    lost: bool
    label: str


_ERROR_HEIGHT = 180
_COLUMNS = 240
"""Dots side by side: more would be one blot."""
_LEAST, _MOST = -8, 1
"""Powers of ten between which errors are drawn; float32's own rounding is at -7."""


def errors(points: Iterable[Point]) -> Picture:
    """The error of every node in the order of the graph; where they are dense, the worst of each column."""
    dots = [_error_dot(point) for point in _worst_of_columns(points)]
    grid = _grid(range(_LEAST, _MOST + 1, 2), _ERROR_HEIGHT)
    caption = Text(WIDTH - _RIGHT, _ERROR_HEIGHT + 18, "along the graph", Anchor.END, tone=Tone.MUTED)
    return Picture("Error of each node, relative L2", WIDTH, _ERROR_HEIGHT + 24, (*grid, caption, *dots))


def _worst_of_columns(points: Iterable[Point]) -> list[Point]:
    worst: dict[int, Point] = {}
    for point in points:
        column = int(point.place * _COLUMNS)
        if column not in worst or _badness(point) > _badness(worst[column]):
            worst[column] = point
    return [worst[column] for column in sorted(worst)]


def _badness(point: Point) -> tuple[bool, float]:
    return point.lost, point.error


def _error_dot(point: Point) -> Dot:
    x = _LEFT + point.place * (WIDTH - _LEFT - _RIGHT)
    power = math.log10(point.error) if point.error > 0 else _LEAST
    y = 0.0 if point.lost else _height(power, _ERROR_HEIGHT)
    if point.lost:
        return Dot(x, y, 3.5, Tone.BAD, f"{point.label}: not finite")
    return Dot(x, y, 2.2, Tone.HALF, f"{point.label}: {point.error:.1e}")


def _height(power: float, height: float) -> float:
    inside = min(max(power, _LEAST), _MOST)
    return height * (_MOST - inside) / (_MOST - _LEAST)


def _grid(powers: Iterable[int], height: float) -> Iterator[Shape]:
    for power in powers:
        y = _height(power, height)
        yield Line(_LEFT, y, WIDTH - _RIGHT, y, Tone.SHADE)
        label = f"1e{power}" if power > _LEAST else f"≤1e{power}"
        yield Text(_LEFT - 8, y + 4, label, Anchor.END, tone=Tone.MUTED)


Binades = Mapping[int, int]
"""How many numbers there are by the power of two that they begin with: 1.5 and 1 are in binade 0."""


def binades_of_stored(stored: Iterable[StoredTensor]) -> Binades:
    """Of all stored numbers; zeros and what is not finite are no part of it."""
    found = np.zeros(_EXPONENTS, np.int64)
    for held in stored:
        for block in tensor_blocks.read(held.tensor):
            found += _exponents(block)
    finite = range(1, _INFINITE)
    return {exponent - _BIAS: int(found[exponent]) for exponent in finite if found[exponent]}


_EXPONENTS, _BIAS, _INFINITE = 256, 127, 255
"""Of float32: how many exponents there are, that of 1, and that of infinity and NaN (IEEE 754)."""


def _exponents(array: NDArray[np.float32]) -> NDArray[np.int64]:
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    return np.bincount((bits >> 23) & (_EXPONENTS - 1), minlength=_EXPONENTS)


def binades_of_values(seen: Observed) -> Binades:
    """Of what a run showed: each value once, with its largest finite number."""
    return Counter(math.frexp(found.most)[1] - 1 for found in seen.values())


@dataclass(frozen=True, slots=True)
class _Axis:
    """The binades that are drawn, from well below a half type's smallest number to well above its largest."""

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
        """Where a power of two stands in the picture; at an edge what lies outside."""
        inside = min(max(power, self.first), self.last + 1)
        return (inside - self.first) / (self.last + 1 - self.first) * (WIDTH - _RIGHT)


_WIDE = 2.0**64
"""float16 ends at 2**16, bfloat16 as float32 does."""
_PANEL, _ROW = 96, 156
"""The height of a histogram, and of one with its title and labels."""


def ranges(stored: Binades, made: Binades, half: Half) -> Picture:
    """Histograms of magnitudes against the limits of half: of stored numbers, and of what nodes make."""
    panels = [("stored numbers", stored), ("what nodes make, each value by its largest number", made)]
    drawn = [panel for panel in panels if panel[1]]
    shapes = (
        shape
        for row, (title, binades) in enumerate(drawn)
        for shape in _panel(title, binades, _Axis(half), row * _ROW + 36)
    )
    title = f"Magnitudes against the limits of {half.name}"
    return Picture(title, WIDTH, max(_ROW * len(drawn), 1), tuple(shapes))


def _panel(title: str, binades: Binades, axis: _Axis, top: float) -> Iterator[Shape]:
    bottom, left, right = top + _PANEL, axis.x(axis.first), axis.x(axis.last + 1)
    limits = _limits(axis.half)
    low, high = axis.x(limits[0].power), axis.x(limits[-1].power)
    yield Rect(left, top, low - left, _PANEL, Tone.SHADE)
    yield Rect(high, top, right - high, _PANEL, Tone.SHADE)
    yield Text(0, top - 22, title, bold=True)
    yield from _bars(binades, axis, bottom)
    yield Line(left, bottom, right, bottom, Tone.MUTED)
    for limit in limits:
        yield Line(axis.x(limit.power), top, axis.x(limit.power), bottom, Tone.MUTED, dash=True)
        yield Text(axis.x(limit.power), top - 6, limit.said, limit.anchor, size=11, tone=Tone.MUTED)
    for power in range(axis.first, axis.last, axis.step):
        anchor = Anchor.START if power == axis.first else Anchor.MIDDLE
        yield Text(axis.x(power), bottom + 16, f"2^{power}", anchor, size=11, tone=Tone.MUTED)


@dataclass(frozen=True, slots=True)
class _Limit:
    power: float
    said: str
    anchor: Anchor


def _limits(half: Half) -> tuple[_Limit, ...]:
    """The smallest number above zero, the smallest with all its bits, and the end."""
    smallest, largest = math.log2(half.smallest), math.log2(half.largest)
    return (
        _Limit(smallest, "0 below", Anchor.END),
        _Limit(smallest + math.log2(half.integers) - 1, "coarser below", Anchor.START),
        _Limit(largest, "infinite above", Anchor.MIDDLE),
    )


def _bars(binades: Binades, axis: _Axis, bottom: float) -> Iterator[Shape]:
    """A bar for each binade; what lies outside the picture is counted at its edge."""
    shown: Counter[int] = Counter()
    for power, count in binades.items():
        shown[min(max(power, axis.first), axis.last)] += count
    highest, wide = max(shown.values()), axis.x(1) - axis.x(0)
    low, *_, high = (limit.power for limit in _limits(axis.half))
    for power, count in sorted(shown.items()):
        tall = max(count / highest * (_PANEL - 4), _SEEN)
        tone = Tone.HALF if low <= power < high else Tone.BAD
        yield Rect(axis.x(power) + wide / 16, bottom - tall, wide * 7 / 8, tall, tone)


_SEEN = 1.5
"""Pixels that even a single number is tall: one that overflows is what one looks for."""
