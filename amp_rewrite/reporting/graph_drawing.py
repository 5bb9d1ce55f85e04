"""Builds the drawn graph of a model and the decisions about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph, Use, value_of
from amp_rewrite.flops.shapes import Flops
from amp_rewrite.model import constants
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.reporting import value_texts
from amp_rewrite.reporting.drawing_order import GraphOutput, Thing, in_order, is_constant, key, with_titles
from amp_rewrite.reporting.drawn_graph import Box, BoxValue, DrawnGraph, DrawnNodes, Frame, Shade, Wire
from amp_rewrite.reporting.value_texts import StoredNumbers
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Plan, PlannedCast, Storage


@dataclass(frozen=True, slots=True)
class PlannedChanges:
    """What a plan will change: the values and the uses that become half, and the added Casts."""

    values: frozenset[ir.Value] = frozenset()
    uses: frozenset[Use] = frozenset()
    casts: tuple[PlannedCast, ...] = ()


def changes(graph: UnitGraph, decisions: Decisions, plan: Plan) -> PlannedChanges:
    """The changes that a plan will make to a model that has not been edited yet."""
    stored = (storing.stored.value for storing in plan.tensors if storing.storage is Storage.HALF)
    halves = (unit for unit in graph.units if decisions.all[unit.index].is_half)
    uses = frozenset(use for unit in halves for use in unit.uses)
    return PlannedChanges(frozenset((*plan.values, *stored)), uses, plan.casts)


def build(
    root: ir.Graph, types: Types, decisions: Decisions, planned: PlannedChanges, flops: Flops
) -> DrawnGraph:
    """The drawn graph of a model with the planned Casts; a rewritten model has its Casts as nodes."""
    return _Drawer(root, types, decisions, planned, flops).drawn()


def of_nodes(root: ir.Graph, types: Types) -> DrawnNodes:
    """The drawn graph of a model about which nothing was decided: the nodes have no shades."""
    drawer = _Drawer(root, types, Decisions(()), PlannedChanges(), {}, reads=False)
    return DrawnNodes(drawer.drawn(), drawer.nodes)


class _Drawer:
    def __init__(
        self,
        root: ir.Graph,
        types: Types,
        decisions: Decisions,
        planned: PlannedChanges,
        flops: Flops,
        *,
        reads: bool = True,
    ) -> None:
        self._types = types
        self._flops = flops
        self._reads = reads
        self._decisions = decisions
        self._units: dict[object, list[int]] = {}
        for unit, decision in enumerate(decisions.all):
            self._units.setdefault(decision.node, []).append(unit)
        self._added = {site.node for site in decisions.cast_sites if site.added}
        self._planned = planned
        self._known: dict[ir.Value, StoredNumbers] = {}
        self._casts = {use: cast for cast in planned.casts for use in cast.uses}
        self._graphs = dict(with_titles(root, ""))
        self._things = [thing for held in self._graphs for thing in in_order(held, planned.casts)]
        self._at: dict[object, int] = {key(thing): i for i, thing in enumerate(self._things)}
        self._position = {held: i for i, held in enumerate(self._graphs)}

    def drawn(self) -> DrawnGraph:
        nodes = [node for held in self._graphs for node in held]
        owners = {body: self._at.get(node) for node in nodes for body in control_flow.bodies(node)}
        return DrawnGraph(
            frames=tuple(Frame(title, owners.get(held)) for held, title in self._graphs.items()),
            boxes=tuple(map(self._box, self._things)),
            wires=tuple(dict.fromkeys(self._wires())),
            constants=sum(map(is_constant, nodes)),
        )

    @property
    def nodes(self) -> tuple[ir.Node | None, ...]:
        """The node of each box, None for what is no node."""
        return tuple(thing if isinstance(thing, ir.Node) else None for thing in self._things)

    def _box(self, thing: Thing) -> Box:
        if isinstance(thing, PlannedCast):
            return self._cast(thing)
        if isinstance(thing, GraphOutput):
            value = thing.graph.outputs[thing.port]
            inputs = self._input(Use(thing.graph, thing.port))
            return Box(self._position[thing.graph], "output", value.name or "", Shade.BORDER, inputs=inputs)
        if isinstance(thing, ir.Value):
            outputs = (self._value(thing, half=thing in self._planned.values),)
            frame = self._position[graph_of(thing)]
            return Box(frame, "input", thing.name or "", Shade.BORDER, outputs=outputs)
        return self._node(thing)

    def _node(self, node: ir.Node) -> Box:
        units = tuple(self._units.get(node, ()))
        held = node.graph
        assert isinstance(held, ir.Graph), "every drawn node belongs to a graph"
        return Box(
            graph=self._position[held],
            operator=schema.written(node.domain, node.op_type),
            name=pinned_as(node),
            shade=self._shade(node, units),
            units=units,
            inputs=tuple(port for i in range(len(node.inputs)) for port in self._input(Use(node, i))),
            outputs=tuple(self._value(value, half=value in self._planned.values) for value in node.outputs),
            bodies=tuple(self._position[body] for body in control_flow.bodies(node)),
            flops=self._flops.get(node),
            attributes=value_texts.attributes(node),
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
            inputs=(self._value(cast.value, half=not to_half),),
            outputs=(self._value(cast.value, half=to_half),),
        )

    def _input(self, use: Use) -> tuple[BoxValue, ...]:
        """The value at a use; empty for an omitted optional input."""
        value = value_of(use)
        return () if value is None else (self._value(value, half=self._is_half(use, value)),)

    def _is_half(self, use: Use, value: ir.Value) -> bool:
        """Whether a use gets half: the colour of its unit, or for graph outputs the type of the value."""
        if use in self._planned.uses or type(use.holder) is ir.Node:
            return use in self._planned.uses
        cast = self._casts.get(use)
        return value in self._planned.values if cast is None else cast.dtype != ir.DataType.FLOAT

    def _value(self, value: ir.Value, *, half: bool) -> BoxValue:
        stored = value.is_initializer() or is_constant(value.producer())
        known = self._numbers(value) if stored and self._reads else StoredNumbers()
        kind = _type_text(value, self._types)
        return BoxValue(value.name or "", kind, half, stored, known.range, known.binades)

    def _numbers(self, value: ir.Value) -> StoredNumbers:
        if value not in self._known:
            self._known[value] = value_texts.stored(constants.stored_as(value))
        return self._known[value]

    def _wires(self) -> Iterator[Wire]:
        for target, thing in enumerate(self._things):
            for source in self._sources(thing):
                if source in self._at:
                    yield Wire(self._at[source], target)

    def _sources(self, thing: Thing) -> Iterator[object]:
        """The keys of the boxes that a box gets its inputs from: Casts, else producers and inputs."""
        uses: list[Use] = []
        if isinstance(thing, PlannedCast):
            yield _producer(thing.value)
        elif isinstance(thing, GraphOutput):
            uses = [Use(thing.graph, thing.port)]
        elif isinstance(thing, ir.Node):
            uses = [Use(thing, port) for port in range(len(thing.inputs))]
        for use in uses:
            value = value_of(use)
            if use in self._casts:
                yield key(self._casts[use])
            elif value is not None:
                yield _producer(value)


_SHADES: Mapping[frozenset[bool], Shade] = {
    frozenset(): Shade.OTHER,
    frozenset((True,)): Shade.HALF,
    frozenset((False,)): Shade.FULL,
    frozenset((True, False)): Shade.MIXED,
}


def _producer(value: ir.Value) -> object:
    return value.producer() or value


def _type_text(value: ir.Value, types: Types) -> str:
    """The type and shape of a value as in `float32[batch, 3]`; unknown parts are omitted."""
    kind = types.get(value) or value.type
    if not isinstance(kind, ir.TensorType):
        return "" if kind is None else str(kind)
    sizes = (str(d) if isinstance(d, int) else d.value or "?" for d in value.shape or ())
    return element_type_name(kind.dtype) + ("" if value.shape is None else f"[{', '.join(sizes)}]")
