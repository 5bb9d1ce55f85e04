"""The graph as drawn in the HTML report: a box for each node, Cast, input and output, and wires."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.units import UnitGraph, Use, value_of
from amp_rewrite.costs.flop_count import Flops
from amp_rewrite.model import constants
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.reporting import binades
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Plan, PlannedCast, Storage
from amp_rewrite.rewriting.report import StepPart


class Shade(enum.Enum):
    """The colour class of a box: the precision of a node, or the kind of another box.

    OTHER is a node without float32, CAST an added Cast, BORDER an input or output of a graph.
    """

    HALF = "half"
    MIXED = "mixed"
    FULL = "full"
    OTHER = "other"
    CAST = "cast"
    BORDER = "border"


Counts = tuple[tuple[int, int], ...]
"""Counts of numbers by binade, in ascending order."""


@dataclass(frozen=True, slots=True)
class BoxValue:
    """An input or output value of a box.

    `type` is the type in the original, such as `float32[2, 3]`; `half` says whether the value is half here
    after the rewrite, `stored` whether it is a constant, and `range` its least and greatest number, as text.
    """

    name: str
    type: str
    half: bool = False
    stored: bool = False
    range: str = ""
    binades: Counts = ()


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
    `layers` has a row for each sequence of repeated layers: the first box of each, and the one past the last.
    """

    frames: tuple[Frame, ...]
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    constants: int
    layers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PlannedChanges:
    """The changes of a plan: the values and the uses that become half, and the added Casts."""

    values: frozenset[ir.Value] = frozenset()
    uses: frozenset[Use] = frozenset()
    casts: tuple[PlannedCast, ...] = ()


def changes(graph: UnitGraph, decisions: Decisions, plan: Plan) -> PlannedChanges:
    """Return the changes that a plan will make to a model that has not been edited yet."""
    half_constants = (storing.stored.value for storing in plan.tensors if storing.storage is Storage.HALF)
    halves = (unit for unit in graph.units if decisions.all[unit.index].is_half)
    uses = frozenset(use for unit in halves for use in unit.uses)
    return PlannedChanges(frozenset((*plan.values, *half_constants)), uses, plan.casts)


def build(
    root: ir.Graph, types: Types, decisions: Decisions, plan_changes: PlannedChanges, flops: Flops
) -> DrawnGraph:
    """Return the drawn graph of a model with the planned Casts; a rewritten model has its Casts as nodes."""
    return _Drawer(root, types, decisions, plan_changes, flops).drawn()


# The boxes of each graph, in order.


@dataclass(frozen=True, slots=True, eq=False)
class _GraphOutput:
    """An output of a graph, by its position."""

    graph: ir.Graph
    port: int


_Item = ir.Node | ir.Value | PlannedCast | _GraphOutput
"""The subject of a box: a node, an input, an added Cast, or an output."""


def _with_titles(graph: ir.Graph, title: str) -> Iterator[tuple[ir.Graph, str]]:
    """Yield a graph and its subgraphs, titled by attribute and node."""
    yield graph, title
    for node in graph:
        for number, body in enumerate(control_flow.bodies(node)):
            names = (a.name for a in node.attributes.values() if a.value is body)
            attribute = next(names, f"body {number + 1}")
            yield from _with_titles(body, f"{attribute} of {node.op_type} {pinned_as(node)}".strip())


def _in_order(graph: ir.Graph, casts: Sequence[PlannedCast]) -> list[_Item]:
    """Return the contents of a graph: nodes in order, inputs before their first use, Casts and outputs after
    their producer.
    """
    place = {node: i for i, node in enumerate(graph)}
    first: dict[ir.Value, int] = {}
    for node, position in place.items():
        for value in filter(None, node.inputs):
            first.setdefault(value, position)
    items: list[tuple[int, int, _Item]] = []
    items += ((i, 2, node) for node, i in place.items() if not _is_constant(node))
    items += ((first.get(v, 0), 0, v) for v in graph.inputs if not v.is_initializer())
    for cast in casts:
        if graph_of(cast.value) is graph:
            producer = cast.value.producer()
            at, rank = (first.get(cast.value, 0), 1) if producer is None else (place[producer], 3)
            items.append((at, rank, cast))
    for port, value in enumerate(graph.outputs):
        producer = value.producer()
        at = len(place) if producer is None else place.get(producer, len(place))
        items.append((at, 4, _GraphOutput(graph, port)))
    return [item for *_, item in sorted(items, key=lambda entry: entry[:2])]


def _is_constant(node: ir.Node | None) -> bool:
    """Return whether a node is a Constant, which has no box of its own: its consumers show it."""
    return node is not None and node.op_type == "Constant" and not node.domain


class _Drawer:
    """The drawing of a model; items are compared by identity, as planned Casts compare by content."""

    def __init__(
        self, root: ir.Graph, types: Types, decisions: Decisions, plan_changes: PlannedChanges, flops: Flops
    ) -> None:
        self._types = types
        self._flops = flops
        self._decisions = decisions
        self._units: dict[object, list[int]] = {}
        for unit, node in enumerate(decisions.nodes):
            self._units.setdefault(node, []).append(unit)
        is_rewritten = not plan_changes.casts
        self._added = {site.output for site in decisions.cast_sites if site.added and is_rewritten}
        self._planned = plan_changes
        self._numbers: dict[ir.Value, tuple[str, Counts]] = {}
        self._casts = {use: cast for cast in plan_changes.casts for use in cast.uses}
        self._graphs = dict(_with_titles(root, ""))
        self._items = [item for graph in self._graphs for item in _in_order(graph, plan_changes.casts)]
        self._at = {id(item): i for i, item in enumerate(self._items)}
        self._position = {graph: i for i, graph in enumerate(self._graphs)}

    def drawn(self) -> DrawnGraph:
        nodes = [node for graph in self._graphs for node in graph]
        owners = {body: self._at.get(id(node)) for node in nodes for body in control_flow.bodies(node)}
        boxes, wires = tuple(map(self._box, self._items)), tuple(dict.fromkeys(self._wires()))
        return DrawnGraph(
            frames=tuple(Frame(title, owners.get(graph)) for graph, title in self._graphs.items()),
            boxes=boxes,
            wires=wires,
            constants=sum(map(_is_constant, nodes)),
            layers=tuple(_repeated_layers(boxes, wires)),
        )

    def _box(self, item: _Item) -> Box:
        if isinstance(item, PlannedCast):
            return self._cast(item)
        if isinstance(item, _GraphOutput):
            value = item.graph.outputs[item.port]
            inputs = self._input(Use(item.graph, item.port))
            return Box(self._position[item.graph], "output", value.name or "", Shade.BORDER, inputs=inputs)
        if isinstance(item, ir.Value):
            outputs = (self._value(item, half=item in self._planned.values),)
            frame = self._position[graph_of(item)]
            return Box(frame, "input", item.name or "", Shade.BORDER, outputs=outputs)
        return self._node(item)

    def _node(self, node: ir.Node) -> Box:
        units = tuple(self._units.get(node, ()))
        graph = node.graph
        assert isinstance(graph, ir.Graph), "every drawn node belongs to a graph"
        shade = _SHADES[frozenset(self._decisions.all[unit].is_half for unit in units)]
        return Box(
            graph=self._position[graph],
            operator=schema.written(node.domain, node.op_type),
            name=pinned_as(node),
            shade=Shade.CAST if node.op_type == "Cast" and node.outputs[0].name in self._added else shade,
            units=units,
            inputs=tuple(port for i in range(len(node.inputs)) for port in self._input(Use(node, i))),
            outputs=tuple(self._value(value, half=value in self._planned.values) for value in node.outputs),
            bodies=tuple(self._position[body] for body in control_flow.bodies(node)),
            flops=self._flops.get(node),
            attributes=attribute_texts(node),
        )

    def _cast(self, cast: PlannedCast) -> Box:
        to_half = cast.dtype != ir.DataType.FLOAT
        return Box(
            graph=self._position[graph_of(cast.value)],
            operator="Cast",
            name=f"{cast.value.name or 'value'} to {element_type_name(cast.dtype)}",
            shade=Shade.CAST,
            inputs=(self._value(cast.value, half=not to_half),),
            outputs=(self._value(cast.value, half=to_half),),
        )

    def _input(self, use: Use) -> tuple[BoxValue, ...]:
        """Return the value at a use; empty for an omitted optional input."""
        value = value_of(use)
        return () if value is None else (self._value(value, half=self._is_half(use, value)),)

    def _is_half(self, use: Use, value: ir.Value) -> bool:
        """Return whether a use gets half, by its unit's colour or for graph outputs by the value's type."""
        if use in self._planned.uses or type(use.holder) is ir.Node:
            return use in self._planned.uses
        cast = self._casts.get(use)
        return value in self._planned.values if cast is None else cast.dtype != ir.DataType.FLOAT

    def _value(self, value: ir.Value, *, half: bool) -> BoxValue:
        is_stored = value.is_initializer() or _is_constant(value.producer())
        if value not in self._numbers:
            self._numbers[value] = _stored_numbers(constants.stored_as(value)) if is_stored else ("", ())
        return BoxValue(
            value.name or "", _type_text(value, self._types), half, is_stored, *self._numbers[value]
        )

    def _wires(self) -> Iterator[Wire]:
        for target, item in enumerate(self._items):
            for source in self._sources(item):
                if id(source) in self._at:
                    yield Wire(self._at[id(source)], target)

    def _sources(self, item: _Item) -> Iterator[object]:
        """Return the items that feed a box: Casts, else producers and inputs."""
        uses: list[Use] = []
        if isinstance(item, PlannedCast):
            yield item.value.producer() or item.value
        elif isinstance(item, _GraphOutput):
            uses = [Use(item.graph, item.port)]
        elif isinstance(item, ir.Node):
            uses = [Use(item, port) for port in range(len(item.inputs))]
        for use in uses:
            value = value_of(use)
            if use in self._casts:
                yield self._casts[use]
            elif value is not None:
                yield value.producer() or value


_SHADES: Mapping[frozenset[bool], Shade] = {
    frozenset(): Shade.OTHER,
    frozenset((True,)): Shade.HALF,
    frozenset((False,)): Shade.FULL,
    frozenset((True, False)): Shade.MIXED,
}


# Repeated layers: sequences of nodes with the same operators as the nodes before them.

_MOST = 1024
"""The most nodes of a layer."""
_SAVED = 12
"""The least number of nodes that repeat a first layer."""


def _repeated_layers(boxes: Sequence[Box], wires: Sequence[Wire]) -> Iterator[tuple[int, ...]]:
    """Yield the starts of repeated layers, and their end. Borders and Casts do not count, as precisions may
    differ from layer to layer; between two layers, those before the first input belong to the former.
    """
    nodes = [i for i, box in enumerate(boxes) if box.shade is not Shade.BORDER and box.operator != "Cast"]
    numbers: dict[tuple[int, str], int] = {}
    keys = ((boxes[i].graph, boxes[i].operator) for i in nodes)
    codes = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    last_use = {wire.source: wire.target for wire in wires}
    crossing = np.bincount([source + 1 for source in last_use], minlength=len(boxes) + 2)
    crossing = np.cumsum(
        crossing - np.bincount([end + 1 for end in last_use.values()], minlength=len(crossing))
    )

    def end(at: int) -> int:
        """Return the box that ends a layer before this node."""
        last = nodes[at - 1]
        if at == len(nodes) or boxes[nodes[at]].graph != boxes[last].graph:
            return last + 1
        return next((i for i in range(last + 1, nodes[at]) if not boxes[i].inputs), nodes[at])

    for first, size, count, slack in _repeats(codes, 0, len(codes)):

        def starts(at: int, size: int = size, count: int = count) -> tuple[int, ...]:
            return nodes[at], *(end(at + size * (i + 1)) for i in range(count))

        def rank(at: int, size: int = size) -> tuple[int, int]:
            """Prefer the cut that the fewest values cross, then the one between scopes of names."""
            ends = zip(boxes[nodes[at]].name, boxes[nodes[at + size - 1]].name, strict=False)
            prefix = itertools.takewhile(lambda letters: letters[0] == letters[1], ends)
            return int(crossing[list(starts(at))].sum()), -sum(1 for _ in prefix)

        yield starts(min(range(first, first + slack + 1), key=rank))


def _repeats(codes: NDArray[np.int64], low: int, high: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield, in order, the longest repeats in a range as their first position, the size of a layer, the
    number of layers, and the number of positions by which all may be shifted.
    """
    best = (_SAVED - 1, low, 1, 0)
    for size in range(1, min((high - low) // 2, _MOST) + 1):
        differs = np.flatnonzero(codes[low : high - size] != codes[low + size : high])
        edges = np.concatenate(([-1], differs, [high - low - size]))
        lengths = np.diff(edges) - 1
        at = int(lengths.argmax())
        saved = int(lengths[at]) // size * size
        if saved > best[0]:
            best = (saved, low + int(edges[at]) + 1, size, int(lengths[at]) - saved)
    saved, first, size, slack = best
    if saved >= _SAVED:
        yield from _repeats(codes, low, first)
        yield first, size, saved // size + 1, slack
        yield from _repeats(codes, first + saved + size + slack, high)


# Types, attributes and stored values as text.


def _type_text(value: ir.Value, types: Types) -> str:
    """Return the type and shape of a value as in `float32[batch, 3]`; unknown parts are omitted."""
    kind = types.get(value) or value.type
    if not isinstance(kind, ir.TensorType):
        return "" if kind is None else str(kind)
    sizes = (str(d) if isinstance(d, int) else d.value or "?" for d in value.shape or ())
    return element_type_name(kind.dtype) + ("" if value.shape is None else f"[{', '.join(sizes)}]")


_SHOWN = 8
"""The most numbers of a list that are shown."""
_LONGEST = 80
"""The most characters of a text that are shown."""
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def attribute_texts(node: ir.Node) -> tuple[tuple[str, str], ...]:
    """Return the attributes of a node that are no bodies: names and values."""
    scalars = (attribute for attribute in node.attributes.values() if attribute.type not in _GRAPHS)
    return tuple((attribute.name, _attribute_text(attribute)) for attribute in scalars)


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"of the function: {attribute.ref_attr_name}"
    value = attribute.value
    if isinstance(value, (list, tuple)):
        more = ", ..." if len(value) > _SHOWN else ""
        text = f"{', '.join(map(_element_text, value[:_SHOWN]))}{more}"
    else:
        text = _element_text(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _element_text(value: object) -> str:
    if isinstance(value, ir.TensorProtocol):
        return f"{element_type_name(value.dtype)}{list(value.shape.numpy())}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
_LARGEST = 1 << 26
"""The number of elements up to which a stored value's range is computed."""
_FEW = 16
"""The number of elements up to which a range suffices, without binades."""


def _stored_numbers(tensor: ir.TensorProtocol | None) -> tuple[str, Counts]:
    """Return the least and the greatest number of a stored float value, as text, and counts of its numbers by
    binade; both empty for other and for large values.

    A few numbers have no binades. Raises ModelError for a value that cannot be read.
    """
    if tensor is None or tensor.dtype not in _FLOATS or not 0 < tensor.size <= _LARGEST:
        return "", ()
    least, most, counts = np.inf, -np.inf, binades.of_array(np.zeros(0, np.float32))
    for block in constants.read(tensor):
        least, most = min(least, float(np.min(block))), max(most, float(np.max(block)))
        counts += binades.of_array(block)
    text = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
    return text, tuple(sorted(counts.items())) if tensor.size > _FEW else ()


# The parts of a train step.


def step_part(box: Box, parts: Mapping[str, StepPart]) -> StepPart | None:
    """Return the part of a box, by the names of its outputs, else FORWARD; a Cast has the part of its value.
    None for boxes other than nodes.
    """
    if box.shade is Shade.BORDER:
        return None
    return next((parts[value.name] for value in box.outputs if value.name in parts), StepPart.FORWARD)
