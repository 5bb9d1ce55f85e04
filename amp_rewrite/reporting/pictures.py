"""Pictures made of plain shapes: one drawing, wherever it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Tone(Enum):
    """What a shape is coloured for; the values are colours on white, which the page replaces by its own."""

    INK = "#17202b"
    MUTED = "#5b6674"
    LIGHT = "#dfe3e8"
    GREY = "#7a8b99"
    HALF = "#1f6fb2"
    FULL = "#b35c00"
    BAD = "#b3261e"

    @property
    def label(self) -> str:
        """The tone's name in a style sheet."""
        return self.name.lower()


class Anchor(Enum):
    """Which part of a text stands at its place."""

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
    """A filled circle; `title` is shown where a pointer rests on it."""

    x: float
    y: float
    r: float
    tone: Tone
    title: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text on the base line `y`."""

    x: float
    y: float
    text: str
    anchor: Anchor = Anchor.START
    size: float = 12
    bold: bool = False
    tone: Tone = Tone.INK


Drawable = Rect | Line | Dot | Text


WIDTH = 460
"""The width of every picture of ours: they stand under each other."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes that are drawn one over the other, on a sheet of that size."""

    title: str
    width: float
    height: float
    shapes: tuple[Drawable, ...]


def plain(picture: Picture) -> dict[str, Any]:
    """The picture as plain data, for the page's script to draw."""
    return {
        "title": picture.title,
        "width": picture.width,
        "height": picture.height,
        "shapes": list(map(_plain_shape, picture.shapes)),
    }


def _plain_shape(shape: Drawable) -> dict[str, Any]:
    match shape:
        case Rect():
            found: dict[str, Any] = {"shape": "rect", "x": shape.x, "y": shape.y, "w": shape.w, "h": shape.h}
        case Line():
            found = {"shape": "line", "x1": shape.x1, "y1": shape.y1, "x2": shape.x2, "y2": shape.y2}
            found["dash"] = shape.dash
        case Dot():
            found = {"shape": "dot", "x": shape.x, "y": shape.y, "r": shape.r, "title": shape.title}
        case Text():
            found = {"shape": "text", "x": shape.x, "y": shape.y, "text": shape.text, "bold": shape.bold}
            found |= {"anchor": shape.anchor.value, "size": shape.size}
    rounded = {key: round(v, 1) if isinstance(v, float) else v for key, v in found.items()}
    return rounded | {"tone": shape.tone.label}
