"""Latencies as a bar chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_rewrite.reporting.pictures import WIDTH, Drawable, Line, Picture, Rect, Text, Tone
from amp_rewrite.running.latency import Bench, Latency


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: what it stands for, its length, and how far the whisker at its end goes; both in ms."""

    label: str
    value: float
    whisker: float
    note: str


def chart(bench: Bench) -> Picture:
    """The medians of a bench as bars, with whiskers to the 90th percentile."""
    bars = [_bar(bench.title(latency), latency) for latency in bench.latencies]
    return bar_chart(f"Latency on {bench.device.value} in ms: median, whisker to p90", bars)


def _bar(title: str, latency: Latency) -> Bar:
    note = f"{latency.p50:.3g} ms, {latency.speedup.median:.2f}x"
    return Bar(title, latency.p50, latency.p90, note)


_ROW, _THICK = 44, 16
_NOTE = 120
"""Room for the note behind the longest bar."""


def bar_chart(title: str, bars: Sequence[Bar]) -> Picture:
    """Bars under each other, all on one scale; the first, which the others are measured against, is grey."""
    longest = max((bar.whisker for bar in bars), default=0.0) or 1.0
    scale = (WIDTH - _NOTE) / longest
    shapes = (shape for row, bar in enumerate(bars) for shape in _drawn(bar, row, scale))
    return Picture(title, WIDTH, max(_ROW * len(bars) - _THICK // 2, 1), tuple(shapes))


def _drawn(bar: Bar, row: int, scale: float) -> Iterator[Drawable]:
    y = _ROW * row + _THICK
    end, tip = bar.value * scale, max(bar.value, bar.whisker) * scale
    yield Text(0, y - 4, bar.label)
    yield Rect(0, y, end, _THICK, Tone.HALF if row else Tone.GREY)
    yield Line(end, y + _THICK / 2, tip, y + _THICK / 2, Tone.MUTED)
    yield Text(tip + 6, y + _THICK - 3, bar.note, tone=Tone.MUTED)
