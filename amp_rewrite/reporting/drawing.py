"""A model, with what is decided of it -> the network that is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph, Use, value_of
from amp_rewrite.colouring.patterns import pinned_as
from amp_rewrite.flops.flop_count import Flops
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name
from amp_rewrite.reporting.network import Box, Frame, Network, Port, Shade, Wire
from amp_rewrite.rewriting.cast_insertion import graph_of
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Plan, PlannedCast, Storage


@dataclass(frozen=True, slots=True)
class Changes:
    """What a plan is going to change: the values and the reads that become half, and the Casts it adds."""

    values: frozenset[ir.Value] = frozenset()
    reads: frozenset[Use] = frozenset()
    casts: tuple[PlannedCast, ...] = ()


def changes(graph: UnitGraph, decisions: Decisions, plan: Plan) -> Changes:
    """What becomes of a model that is still as it was."""
    stored = (storing.stored.value for storing in plan.tensors if storing.storage is Storage.HALF)
    halves = (unit for unit in graph.units if decisions.all[unit.index].is_half)
    reads = (site for unit in halves for site in unit.uses)
    return Changes(frozenset((*plan.values, *stored)), frozenset(reads), plan.casts)


def build(root: ir.Graph, types: Types, decisions: Decisions, planned: Changes, flops: Flops) -> Network:
    """The network of a model with the Casts that are planned; a rewritten one has its Casts as nodes."""
    return _Drawer(root, types, decisions, planned, flops).network()


@dataclass(frozen=True, slots=True, eq=False)
class _Leaving:
    """A place among the outputs of a graph."""

    graph: ir.Graph
    port: int


_Thing = ir.Node | ir.Value | PlannedCast | _Leaving
"""What a box stands for: a node, an input, a Cast to be added, an output."""


class _Drawer:
    def __init__(
        self, root: ir.Graph, types: Types, decisions: Decisions, planned: Changes, flops: Flops
    ) -> None:
        self._types = types
        self._flops = flops
        self._decisions = decisions
        self._units: dict[object, list[int]] = {}
        for unit, decision in enumerate(decisions.all):
            self._units.setdefault(decision.node, []).append(unit)
        self._added = {crossing.node for crossing in decisions.cast_sites if crossing.added}
        self._planned = planned
        self._casts = {site: cast for cast in planned.casts for site in cast.uses}
        self._graphs = dict(_with_titles(root, ""))
        self._things = [thing for held in self._graphs for thing in self._in_order(held)]
        self._at: dict[object, int] = {_key(thing): i for i, thing in enumerate(self._things)}
        self._position = {held: i for i, held in enumerate(self._graphs)}

    def network(self) -> Network:
        nodes = [node for held in self._graphs for node in held]
        owners = {body: self._at.get(node) for node in nodes for body in control_flow.bodies(node)}
        return Network(
            frames=tuple(Frame(title, owners.get(held)) for held, title in self._graphs.items()),
            boxes=tuple(map(self._box, self._things)),
            wires=tuple(dict.fromkeys(self._wires())),
            constants=sum(map(_is_constant, nodes)),
        )

    def _in_order(self, graph: ir.Graph) -> list[_Thing]:
        """What stands in a graph: its nodes in their order, inputs before their first reader, Casts and
        outputs behind their maker.
        """
        place = {node: i for i, node in enumerate(graph)}
        first = _first_readers(place)
        things: list[tuple[int, int, _Thing]] = []
        things += ((i, 2, node) for node, i in place.items() if not _is_constant(node))
        things += ((first.get(v, 0), 0, v) for v in graph.inputs if not v.is_initializer())
        for cast in self._planned.casts:
            if graph_of(cast.value) is graph:
                maker = cast.value.producer()
                at, rank = (first.get(cast.value, 0), 1) if maker is None else (place[maker], 3)
                things.append((at, rank, cast))
        for port, value in enumerate(graph.outputs):
            maker = value.producer()
            made = len(place) if maker is None else place.get(maker, len(place))
            things.append((made, 4, _Leaving(graph, port)))
        return [thing for *_, thing in sorted(things, key=lambda entry: entry[:2])]

    def _box(self, thing: _Thing) -> Box:
        if isinstance(thing, PlannedCast):
            return self._cast(thing)
        if isinstance(thing, _Leaving):
            value = thing.graph.outputs[thing.port]
            read = self._read(Use(thing.graph, thing.port))
            return Box(self._position[thing.graph], "output", value.name or "", Shade.BORDER, reads=read)
        if isinstance(thing, ir.Value):
            makes = (self._port(thing, half=thing in self._planned.values),)
            return Box(self._position[graph_of(thing)], "input", thing.name or "", Shade.BORDER, makes=makes)
        return self._node(thing)

    def _node(self, node: ir.Node) -> Box:
        units = tuple(self._units.get(node, ()))
        held = node.graph
        assert isinstance(held, ir.Graph), "every node that is drawn stands in a graph"
        return Box(
            graph=self._position[held],
            operator=schema.written(node.domain, node.op_type),
            name=pinned_as(node),
            shade=self._shade(node, units),
            units=units,
            reads=tuple(port for i in range(len(node.inputs)) for port in self._read(Use(node, i))),
            makes=tuple(self._port(value, half=value in self._planned.values) for value in node.outputs),
            bodies=tuple(self._position[body] for body in control_flow.bodies(node)),
            flops=self._flops.get(node),
        )

    def _shade(self, node: ir.Node, units: tuple[int, ...]) -> Shade:
        if node in self._added:
            return Shade.CAST
        return _SHADES[frozenset(self._decisions.all[unit].is_half for unit in units)]

    def _cast(self, cast: PlannedCast) -> Box:
        to_half = cast.dtype != ir.DataType.FLOAT
        return Box(
            graph=self._position[graph_of(cast.value)],
            operator="Cast",
            name=f"{cast.value.name or 'value'} to {element_type_name(cast.dtype)}",
            shade=Shade.CAST,
            reads=(self._port(cast.value, half=not to_half),),
            makes=(self._port(cast.value, half=to_half),),
        )

    def _read(self, site: Use) -> tuple[Port, ...]:
        """The port of a place that reads something; nothing for an empty optional input."""
        value = value_of(site)
        return () if value is None else (self._port(value, half=self._reads_half(site, value)),)

    def _reads_half(self, site: Use, value: ir.Value) -> bool:
        """A unit reads what it is; an output of a graph what its Cast or its maker gives it."""
        if site in self._planned.reads or type(site.holder) is ir.Node:
            return site in self._planned.reads
        cast = self._casts.get(site)
        return value in self._planned.values if cast is None else cast.dtype != ir.DataType.FLOAT

    def _port(self, value: ir.Value, *, half: bool) -> Port:
        stored = value.is_initializer() or _is_constant(value.producer())
        return Port(value.name or "", type_text(value, self._types), half, stored)

    def _wires(self) -> Iterator[Wire]:
        for reader, thing in enumerate(self._things):
            for source in self._sources(thing):
                if source in self._at:
                    yield Wire(self._at[source], reader)

    def _sources(self, thing: _Thing) -> Iterator[object]:
        """What a box reads from: Casts where they stand between, else makers and inputs."""
        if isinstance(thing, PlannedCast):
            yield _maker(thing.value)
        elif isinstance(thing, _Leaving):
            yield from self._source(Use(thing.graph, thing.port))
        elif isinstance(thing, ir.Node):
            for port in range(len(thing.inputs)):
                yield from self._source(Use(thing, port))

    def _source(self, site: Use) -> Iterator[object]:
        value = value_of(site)
        if site in self._casts:
            yield _key(self._casts[site])
        elif value is not None:
            yield _maker(value)


_SHADES: Mapping[frozenset[bool], Shade] = {
    frozenset(): Shade.OTHER,
    frozenset((True,)): Shade.HALF,
    frozenset((False,)): Shade.FULL,
    frozenset((True, False)): Shade.MIXED,
}


def _key(thing: _Thing) -> object:
    """Plans hold Casts that compare by content; here each is itself."""
    return id(thing) if isinstance(thing, PlannedCast) else thing


def _maker(value: ir.Value) -> object:
    return value.producer() or value


def _is_constant(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Constant" and not node.domain


def _first_readers(place: Mapping[ir.Node, int]) -> dict[ir.Value, int]:
    first: dict[ir.Value, int] = {}
    for node, position in place.items():
        for value in node.inputs:
            if value is not None:
                first.setdefault(value, position)
    return first


def _with_titles(graph: ir.Graph, title: str) -> Iterator[tuple[ir.Graph, str]]:
    """A graph and those below it, each with the attribute and the node that hold it."""
    yield graph, title
    for node in graph:
        for number, body in enumerate(control_flow.bodies(node)):
            yield from _with_titles(body, _title(node, number, body))


def _title(node: ir.Node, number: int, body: ir.Graph) -> str:
    names = (a.name for a in node.attributes.values() if a.value is body)
    return f"{next(names, f'body {number + 1}')} of {node.op_type} {pinned_as(node)}".strip()


def type_text(value: ir.Value, types: Types) -> str:
    """A value's type and shape as people write them: `float32[batch, 3]`; what is unknown is left out."""
    kind = types.get(value) or value.type
    if kind is None:
        return ""
    if not isinstance(kind, ir.TensorType):
        return str(kind)
    return f"{element_type_name(kind.dtype)}{_shape(value.shape)}"


def _shape(shape: ir.Shape | None) -> str:
    return "" if shape is None else f"[{', '.join(map(_size, shape))}]"


def _size(size: int | ir.SymbolicDim) -> str:
    return str(size) if isinstance(size, int) else str(size.value or "?")
