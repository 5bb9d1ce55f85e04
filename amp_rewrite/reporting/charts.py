"""Latencies as a bar chart: SVG drawn here, PNG by matplotlib where it is installed."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from amp_rewrite import writing
from amp_rewrite.errors import MissingPackageError, OptionError
from amp_rewrite.running.latency import Bench, Latency


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: what it stands for, its length, and how far the whisker at its end goes; both in ms."""

    label: str
    value: float
    whisker: float
    note: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under a title; they all share one scale."""

    title: str
    bars: tuple[Bar, ...]


def chart(bench: Bench) -> Chart:
    """The medians of a bench as bars, with whiskers to the 90th percentile."""
    bars = (_bar(bench.title(latency), latency) for latency in bench.latencies)
    return Chart(f"Latency on {bench.device.value} in ms: median, whisker to p90", tuple(bars))


def _bar(title: str, latency: Latency) -> Bar:
    note = f"{latency.p50:.3g} ms, {latency.speedup.median:.2f}x"
    return Bar(title, latency.p50, latency.p90, note)


Drawing = Callable[[Chart], bytes]
"""Draws a chart as the bytes of a file."""


def drawing(path: Path) -> Drawing:
    """How to draw a file of that name. Raises OptionError, and MissingPackageError without matplotlib."""
    kind = path.suffix.lower()
    if kind not in _DRAWINGS:
        raise OptionError(f"{path} is neither .svg nor .png", remedy="name the chart so")
    if kind == ".png":
        _matplotlib()
    return _DRAWINGS[kind]


def write(bench: Bench, path: Path) -> None:
    """Writes the chart of a bench; raises as `drawing` does, and OutputError."""
    writing.write(drawing(path)(chart(bench)), path)


WIDTH = 640
_EDGE, _ROW, _THICK, _TOP = 16, 44, 16, 48
_NOTE = 130
"""Room for the note behind the longest bar."""

_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" role="img" font-family="sans-serif" font-size="13">
<title>{title}</title>
<rect width="100%" height="100%" fill="white"/>
<text x="{edge}" y="28" font-size="15" font-weight="bold">{title}</text>
{bars}
</svg>
"""
_SVG_BAR = """<text x="{edge}" y="{above}">{label}</text>
<rect x="{edge}" y="{y}" width="{length:.1f}" height="{thick}" fill="{fill}"/>
<line x1="{end:.1f}" y1="{middle}" x2="{tip:.1f}" y2="{middle}" stroke="#444"/>
<text x="{after:.1f}" y="{below}" fill="#444">{note}</text>"""
_FILLS = ("#7a8b99", "#2a6fb0")
"""The first model's colour, which the others are measured against, and that of the others."""


def svg(drawn: Chart) -> bytes:
    """The chart as SVG; every text in it is escaped."""
    longest = max((bar.whisker for bar in drawn.bars), default=0.0) or 1.0
    scale = (WIDTH - 2 * _EDGE - _NOTE) / longest
    bars = (_svg_bar(bar, row, scale) for row, bar in enumerate(drawn.bars))
    text = _SVG.format(
        width=WIDTH,
        height=_TOP + _ROW * len(drawn.bars) + _EDGE,
        edge=_EDGE,
        title=escape(drawn.title),
        bars="\n".join(bars),
    )
    return text.encode()


def _svg_bar(bar: Bar, row: int, scale: float) -> str:
    y = _TOP + _ROW * row + _EDGE
    end, tip = _EDGE + bar.value * scale, _EDGE + max(bar.value, bar.whisker) * scale
    return _SVG_BAR.format(
        edge=_EDGE,
        above=y - 4,
        y=y,
        middle=y + _THICK // 2,
        below=y + _THICK - 3,
        thick=_THICK,
        length=end - _EDGE,
        end=end,
        tip=tip,
        after=tip + 6,
        fill=_FILLS[min(row, 1)],
        label=escape(bar.label),
        note=escape(bar.note),
    )


def _matplotlib() -> Any:
    """matplotlib, drawing to memory; MissingPackageError where it is not installed."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingPackageError("matplotlib", extra="plots", purpose="a PNG chart") from error


def png(drawn: Chart) -> bytes:
    """The chart as PNG; MissingPackageError without matplotlib."""
    made = _matplotlib().Figure(figsize=(6.4, 0.9 + 0.5 * len(drawn.bars)), layout="constrained")
    axes = made.subplots()
    _draw(axes, drawn.title, drawn.bars)
    file = io.BytesIO()
    made.savefig(file, format="png", dpi=150)
    return file.getvalue()


def _draw(axes: Any, title: str, bars: Sequence[Bar]) -> None:
    whiskers = [[0.0] * len(bars), [max(bar.whisker - bar.value, 0.0) for bar in bars]]
    fills = [_FILLS[min(row, 1)] for row in range(len(bars))]
    drawn = axes.barh(range(len(bars)), [bar.value for bar in bars], xerr=whiskers, color=fills)
    axes.bar_label(drawn, [_plain(bar.note) for bar in bars], padding=4)
    axes.set_yticks(range(len(bars)), [_plain(bar.label) for bar in bars])
    axes.invert_yaxis()
    axes.margins(x=0.5)
    axes.set_title(_plain(title))


def _plain(text: str) -> str:
    """The text without what matplotlib would take for a formula."""
    return text.replace("$", r"\$")


_DRAWINGS: Mapping[str, Drawing] = {".svg": svg, ".png": png}
