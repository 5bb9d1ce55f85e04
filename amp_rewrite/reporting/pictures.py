"""Pictures made of plain shapes, which the page and SVG files draw from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Tone(Enum):
    """The role of a colour; the values are colours on white, which the page replaces by its own."""

    INK = "#17202b"
    MUTED = "#5b6674"
    LIGHT = "#dfe3e8"
    GREY = "#7a8b99"
    HALF = "#1f6fb2"
    FULL = "#b35c00"
    BAD = "#b3261e"

    @property
    def label(self) -> str:
        """The name of the tone in the style sheet."""
        return self.name.lower()


class Anchor(Enum):
    """Which part of a text is at its position."""

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
    """The picture as plain data, for the page's scripts to draw."""
    return {
        "title": picture.title,
        "width": picture.width,
        "height": picture.height,
        "shapes": list(map(_plain_shape, picture.shapes)),
    }


def _plain_shape(shape: Drawable) -> dict[str, Any]:
    fields = asdict(shape) | {"shape": type(shape).__name__.lower(), "tone": shape.tone.label}
    if isinstance(shape, Text):
        fields["anchor"] = shape.anchor.value
    return {key: round(value, 1) if isinstance(value, float) else value for key, value in fields.items()}
