"""A model as it is drawn: a box for every node, Cast, input and output, and wires between them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Shade(enum.Enum):
    """What a box shows: the precision of a node's float32 parts, or that it is no node of the model.

    OTHER is a node without float32, CAST a Cast that the plan adds, BORDER an input or output of a graph.
    """

    HALF = "half"
    MIXED = "mixed"
    FULL = "full"
    OTHER = "other"
    CAST = "cast"
    BORDER = "border"


@dataclass(frozen=True, slots=True)
class BoxValue:
    """A value as a box reads or makes it.

    `type` is the original's, such as `float32[2, 3]`; `half` says whether the value is in half here after
    the rewrite, `stored` whether the model holds it.
    """

    name: str
    type: str
    half: bool = False
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """One thing that is drawn.

    `graph` is the position of its graph, `units` are those of its node, `bodies` the graphs that it holds.
    A node goes by the name that pins have for it; `flops` is its arithmetic in one run, None where unknown.
    """

    graph: int
    operator: str
    name: str
    shade: Shade
    units: tuple[int, ...] = ()
    reads: tuple[BoxValue, ...] = ()
    makes: tuple[BoxValue, ...] = ()
    bodies: tuple[int, ...] = ()
    flops: int | None = None


@dataclass(frozen=True, slots=True)
class Wire:
    """A value that flows from one box to another, by position."""

    maker: int
    reader: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The main graph, or a body; a body's title names the attribute that holds it, `owner` its node's box."""

    title: str
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """All that is drawn; boxes stand in the order of the nodes, those of a graph side by side.

    `constants` counts the Constant nodes, which are not drawn: their readers name them.
    """

    frames: tuple[Frame, ...]
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    constants: int
