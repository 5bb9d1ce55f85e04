"""Pictures as files: SVG, and PNG by matplotlib."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from amp_rewrite.errors import MissingPackageError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.process import startup
from amp_rewrite.reporting.pictures import Anchor, Dot, Drawable, Line, Picture, Rect, Text

Drawing = Callable[[Picture], bytes]
"""Draws a picture as the bytes of a file."""


def drawing(path: Path) -> Drawing:
    """How to draw a file with this suffix. Raises OptionError, and MissingPackageError without matplotlib."""
    kind = path.suffix.lower()
    if kind not in _DRAWINGS:
        raise OptionError(f"{path} is neither .svg nor .png", remedy="give it one of these suffixes")
    if kind == ".png":
        _matplotlib("figure")
    return _DRAWINGS[kind]


def write(picture: Picture, path: Path) -> None:
    """Writes a picture to a file. Raises OutputError, and what `drawing` raises."""
    staging.write(drawing(path)(picture), path)


_MARGIN, _HEADLINE = 16, 40
"""The margin around a picture in a file, and the space above it for the title."""


def svg(picture: Picture) -> bytes:
    """The picture as SVG below its title; all text is escaped."""
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN + _HEADLINE
    root = ET.Element("svg", xmlns=_SVG, width=f"{width:g}", height=f"{height:g}", role="img")
    root.set("viewBox", f"0 0 {width:g} {height:g}")
    root.set("font-family", "sans-serif")
    _add(root, "title", picture.title)
    _add(root, "rect", width="100%", height="100%", fill="white")
    _draw_svg(root, Text(_MARGIN, _MARGIN + 14, picture.title, size=15, bold=True))
    group = _add(root, "g", transform=f"translate({_MARGIN} {_MARGIN + _HEADLINE})")
    for shape in picture.shapes:
        _draw_svg(group, shape)
    return ET.tostring(root, encoding="utf-8")


_SVG = "http://www.w3.org/2000/svg"


def _draw_svg(parent: ET.Element, shape: Drawable) -> None:
    match shape:
        case Rect():
            _add(parent, "rect", x=shape.x, y=shape.y, width=shape.w, height=shape.h, fill=shape.tone.value)
        case Line():
            line = _add(parent, "line", x1=shape.x1, y1=shape.y1, x2=shape.x2, y2=shape.y2)
            line.set("stroke", shape.tone.value)
            line.attrib.update({"stroke-dasharray": "4 3"} if shape.dash else {})
        case Dot():
            dot = _add(parent, "circle", cx=shape.x, cy=shape.y, r=shape.r, fill=shape.tone.value)
            _add(dot, "title", shape.title)
        case Text():
            text = _add(parent, "text", shape.text, x=shape.x, y=shape.y, fill=shape.tone.value)
            text.set("font-size", f"{shape.size:g}")
            text.set("text-anchor", shape.anchor.value)
            text.attrib.update({"font-weight": "bold"} if shape.bold else {})


def _add(parent: ET.Element, tag: str, content: str = "", **attributes: float | str) -> ET.Element:
    written = {k: v if isinstance(v, str) else f"{v:.1f}" for k, v in attributes.items()}
    element = ET.SubElement(parent, tag, written)
    element.text = _printable(content) or None
    return element


def _printable(text: str) -> str:
    """Text with control characters and lone surrogates replaced: XML may not contain them."""
    return "".join(c if c.isprintable() or c == " " else "\N{REPLACEMENT CHARACTER}" for c in text)


def has_png() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _matplotlib(module: str) -> Any:
    """A module of matplotlib; MissingPackageError where it is not installed."""
    try:
        return startup.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise MissingPackageError("matplotlib", extra="plots", purpose="a PNG chart") from error


_DPI = 100
_SHARP = 2
"""PNG pixels per pixel of the picture."""


def png(picture: Picture) -> bytes:
    """The picture as PNG below its title; MissingPackageError without matplotlib."""
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN + _HEADLINE
    sheet = _matplotlib("figure").Figure(figsize=(width / _DPI, height / _DPI))
    axes = sheet.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-_MARGIN, picture.width + _MARGIN)
    axes.set_ylim(picture.height + _MARGIN, -_MARGIN - _HEADLINE)  # y grows downwards
    title = Text(0, 14 - _HEADLINE, picture.title, size=15, bold=True)
    for order, shape in enumerate((title, *picture.shapes)):
        _draw_png(axes, shape, order)
    file = io.BytesIO()
    sheet.savefig(file, format="png", dpi=_SHARP * _DPI)
    return file.getvalue()


def _draw_png(axes: Any, shape: Drawable, order: int) -> None:
    patches = _matplotlib("patches")
    colour = shape.tone.value
    match shape:
        case Rect():
            axes.add_patch(
                patches.Rectangle((shape.x, shape.y), shape.w, shape.h, color=colour, lw=0, zorder=order)
            )
        case Line():
            style = (0, (4, 3)) if shape.dash else "solid"
            axes.plot(
                [shape.x1, shape.x2], [shape.y1, shape.y2], color=colour, lw=_POINTS, ls=style, zorder=order
            )
        case Dot():
            axes.add_patch(patches.Circle((shape.x, shape.y), shape.r, color=colour, lw=0, zorder=order))
        case Text():
            axes.text(
                shape.x,
                shape.y,
                _printable(shape.text).replace("$", r"\$"),  # else matplotlib reads it as a formula
                color=colour,
                fontsize=shape.size * _POINTS,
                fontweight="bold" if shape.bold else "normal",
                ha=_ALIGNED[shape.anchor],
                va="baseline",
                zorder=order,
            )


_POINTS = 72 / _DPI
"""Points per pixel."""
_ALIGNED = {Anchor.START: "left", Anchor.MIDDLE: "center", Anchor.END: "right"}
_DRAWINGS: Mapping[str, Drawing] = {".svg": svg, ".png": png}
