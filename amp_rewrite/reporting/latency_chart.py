"""Latencies as a bar chart."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.reporting.pictures import WIDTH, Drawable, Line, Picture, Rect, Text, Tone
from amp_rewrite.running.latency import Bench, Latency

_ROW, _THICK = 44, 16
_NOTE = 120
"""Room for the note behind the longest bar."""


def chart(bench: Bench) -> Picture:
    """The medians of a bench as bars, with whiskers to the 90th percentile; the first bar is grey."""
    longest = max((latency.p90 for latency in bench.latencies), default=0.0) or 1.0
    scale = (WIDTH - _NOTE) / longest
    bars = ((bench.title(latency), latency) for latency in bench.latencies)
    shapes = (shape for row, (title, found) in enumerate(bars) for shape in _bar(title, found, row, scale))
    title = f"Latency on {bench.device.value} in ms: median, whisker to p90"
    return Picture(title, WIDTH, max(_ROW * len(bench.latencies) - _THICK // 2, 1), tuple(shapes))


def _bar(title: str, latency: Latency, row: int, scale: float) -> Iterator[Drawable]:
    y = _ROW * row + _THICK
    end, tip = latency.p50 * scale, max(latency.p50, latency.p90) * scale
    yield Text(0, y - 4, title)
    yield Rect(0, y, end, _THICK, Tone.HALF if row else Tone.GREY)
    yield Line(end, y + _THICK / 2, tip, y + _THICK / 2, Tone.MUTED)
    note = f"{latency.p50:.3g} ms, {latency.speedup.median:.2f}x"
    yield Text(tip + 6, y + _THICK - 3, note, tone=Tone.MUTED)
