"""Pictures composed of plain shapes, for the page's scripts and SVG files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from amp_rewrite.errors import OptionError
from amp_rewrite.files import staging


class Tone(Enum):
    """The role of a colour; the values are colours on white, which the page replaces by its own."""

    INK = "#17202b"
    MUTED = "#5b6674"
    LIGHT = "#dfe3e8"
    GREY = "#7a8b99"
    HALF = "#1f6fb2"
    FULL = "#b35c00"
    BAD = "#b3261e"


class Anchor(Enum):
    """The part of a text that is at its position."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle; lengths here and below are in pixels, from the upper left corner."""

    x: float
    y: float
    w: float
    h: float
    tone: Tone


@dataclass(frozen=True, slots=True)
class Line:
    """A thin line."""

    x1: float
    y1: float
    x2: float
    y2: float
    tone: Tone
    dash: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A filled circle; `title` is its tooltip."""

    x: float
    y: float
    r: float
    tone: Tone
    title: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text with the baseline `y`."""

    x: float
    y: float
    text: str
    anchor: Anchor = Anchor.START
    size: float = 12
    bold: bool = False
    tone: Tone = Tone.INK


Drawable = Rect | Line | Dot | Text


WIDTH = 460
"""The width of every picture: the page shows them in one column."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes, drawn in order on a canvas of this size."""

    title: str
    width: float
    height: float
    shapes: tuple[Drawable, ...]


def plain(picture: Picture) -> dict[str, Any]:
    """Return the picture as plain data, for the page's scripts to draw."""
    return {
        "title": picture.title,
        "width": picture.width,
        "height": picture.height,
        "shapes": list(map(_plain_shape, picture.shapes)),
    }


def _plain_shape(shape: Drawable) -> dict[str, Any]:
    fields = asdict(shape) | {"shape": type(shape).__name__.lower(), "tone": shape.tone.name.lower()}
    if isinstance(shape, Text):
        fields["anchor"] = shape.anchor.value
    return {key: round(value, 1) if isinstance(value, float) else value for key, value in fields.items()}


def refuse_other_suffix(path: Path) -> None:
    """Raise OptionError for a file whose name does not end in `.svg`."""
    if path.suffix.lower() != ".svg":
        raise OptionError(f"{path} does not end in .svg", remedy="give it that suffix")


def write(picture: Picture, path: Path) -> None:
    """Write a picture to a file. Raises OutputError, and OptionError as `refuse_other_suffix`."""
    refuse_other_suffix(path)
    staging.write(svg(picture), path)


_MARGIN, _HEADLINE = 16, 40
"""The margin around a picture in a file, and the space above it for the title."""


def svg(picture: Picture) -> bytes:
    """Return the picture as SVG below its title; all text is escaped."""
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
    texts = {k: v if isinstance(v, str) else f"{v:.1f}" for k, v in attributes.items()}
    element = ET.SubElement(parent, tag, texts)
    # XML may not contain control characters and lone surrogates
    printable = (c if c.isprintable() or c == " " else "\N{REPLACEMENT CHARACTER}" for c in content)
    element.text = "".join(printable) or None
    return element
