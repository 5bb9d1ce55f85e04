"""The graph as drawn in the HTML report: a box for each node, Cast, input and output, and wires."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import onnx_ir as ir


class Shade(enum.Enum):
    """The colour class of a box: the precision of a node, or what else the box stands for.

    OTHER is a node without float32, CAST an added Cast, BORDER an input or output of a graph.
    """

    HALF = "half"
    MIXED = "mixed"
    FULL = "full"
    OTHER = "other"
    CAST = "cast"
    BORDER = "border"


@dataclass(frozen=True, slots=True)
class BoxValue:
    """An input or output value of a box.

    `type` is the type in the original, such as `float32[2, 3]`; `half` says whether the value is half here
    after the rewrite, `stored` whether it is a constant, and `range` its least and greatest number, as text.
    `binades` has counts of its numbers by the power of two that they begin with, in their order.
    """

    name: str
    type: str
    half: bool = False
    stored: bool = False
    range: str = ""
    binades: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A node, Cast, input or output.

    `graph` is the index of its frame, `units` are the units of its node, `bodies` the frames of its bodies.
    The name of a node is the one that pins use; `flops` are for one run, None where unknown.
    """

    graph: int
    operator: str
    name: str
    shade: Shade
    units: tuple[int, ...] = ()
    inputs: tuple[BoxValue, ...] = ()
    outputs: tuple[BoxValue, ...] = ()
    bodies: tuple[int, ...] = ()
    flops: int | None = None
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Wire:
    """The indices of two boxes, the second of which uses an output of the first."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The main graph, or a body: `title` names its attribute and node, `owner` is the box of its node."""

    title: str
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """Frames, boxes and wires; boxes are in node order, and those of a frame are contiguous.

    `constants` counts the Constant nodes, which are not drawn but listed among the inputs of their consumers.
    """

    frames: tuple[Frame, ...]
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    constants: int


@dataclass(frozen=True, slots=True)
class DrawnNodes:
    """A drawn graph, and the node of each of its boxes, None for an input or output."""

    graph: DrawnGraph
    nodes: tuple[ir.Node | None, ...]
