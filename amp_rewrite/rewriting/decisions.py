"""The decision on every unit and its reason, and the sites of Casts: records in memory and in files alike.

`plan` decides on Casts, and `editing` places them.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph, Use
from amp_rewrite.colouring.painting import Colour, Painting, Rule
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import element_type_name
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.evidence import Evidence
from amp_rewrite.rewriting.plan import Plan, PlannedCast
from amp_rewrite.rewriting.records import Count

Flops = Mapping[Any, int | None]
"""The floating-point operations of nodes; None where they are not known."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The decision on one unit: a type variable of a node with these outputs.

    `cause` is the position of the decision that caused this one, None where its own kind did; `flops` are
    those of the whole node for one run, None where unknown. Names of nodes may be empty and may repeat. In a
    file, only the first of the decisions on a node has `outputs`: a Loop can have thousands of both.
    """

    node: str = ""
    operator: str
    variable: str
    outputs: tuple[str, ...] = ()
    precision: Colour
    rule: Rule
    kind: Kind
    evidence: Evidence
    cause: Count | None = None
    flops: Count | None = None

    @property
    def place(self) -> str:
        """The node's label: operator, and its name or that of its first output."""
        label = f"'{self.node}'" if self.node else f"-> '{next(iter(self.outputs), '')}'"
        return f"{self.operator} {label}"

    @property
    def is_half(self) -> bool:
        """Return whether the unit is HALF."""
        return self.precision is Colour.HALF

    @property
    def by_hand(self) -> bool:
        """Return whether the precision was edited in a saved plan, so that no rule gives it."""
        return self.rule is not Rule.SETTLE and self.is_half is (self.rule in _GIVE_FULL)


_GIVE_FULL = (Rule.DENY, Rule.LEFT, Rule.PRUNE, Rule.GATE)


class Origin(enum.Enum):
    """The origin of a value that is cast: a UNIT, an INPUT of a graph, a STORED tensor, or ANOTHER node,
    which has no float32.
    """

    UNIT = "unit"
    INPUT = "input"
    STORED = "stored"
    ANOTHER = "another"


class CastSite(msgspec.Struct, frozen=True):
    """An existing or planned Cast: a value is produced in one type and used in another.

    `names` are the known ones of the value, of the Cast and of its output. `producer` and `consumers` are
    positions in the decisions; `is_output` says whether the output of the Cast is an output of the model, and
    `added` whether the rewrite adds the Cast.
    """

    names: tuple[str, ...]
    dtype: str
    origin: Origin
    producer: Count | None
    consumers: tuple[Count, ...]
    is_output: bool
    added: bool

    @property
    def output(self) -> str:
        """The name of the Cast's output, which tells Casts apart."""
        return self.names[-1] if self.names else ""

    def of_units(self, places: Mapping[int | None, int]) -> CastSite:
        """Return the site with other positions; units without one are left out."""
        consumers = tuple(places[unit] for unit in self.consumers if unit in places)
        return msgspec.structs.replace(self, producer=places.get(self.producer), consumers=consumers)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions on a whole model, in the order of its units, and the Cast sites that follow from them.

    `nodes` tells the nodes of the decisions apart: each is the ir.Node, or a number where there is no model.
    """

    all: tuple[Decision, ...]
    cast_sites: tuple[CastSite, ...] = ()
    nodes: tuple[Hashable, ...] = ()

    @property
    def flops(self) -> Flops:
        """The FLOPs of the nodes, without those that are not known."""
        recorded = zip(self.nodes, self.all, strict=True)
        return {node: decision.flops for node, decision in recorded if decision.flops is not None}

    @property
    def half_nodes(self) -> set[Hashable]:
        """The nodes of which a unit is half."""
        return {node for node, decision in zip(self.nodes, self.all, strict=True) if decision.is_half}

    def label(self, unit: int) -> str:
        """Return the label of a unit: its node's, and the type variable where the node has several units."""
        decision, node = self.all[unit], self.nodes[unit]
        beside = (*self.nodes[max(unit - 1, 0) : unit], *self.nodes[unit + 1 : unit + 2])
        return f"{decision.place} ({decision.variable})" if node in beside else decision.place

    def why(self, unit: int) -> tuple[int, ...]:
        """Return the chain of causes from a unit, itself first, to its root, or to one edited by hand."""
        return tuple(self._chain(unit))

    def cause(self, unit: int) -> int | None:
        """Return the unit that caused the precision of another; None where the chain of causes ends."""
        decision = self.all[unit]
        return None if decision.by_hand or decision.cause == unit else decision.cause

    def origins(self) -> tuple[int, ...]:
        """Return the end of the chain of causes of every unit; linear in the number of units."""
        ends: dict[int, int] = {}
        for unit in range(len(self.all)):
            if unit not in ends:
                chain = self._chain(unit, ends)
                last = next(reversed(chain))
                beyond = self.cause(last)
                end = last if beyond is None else ends.get(beyond, last)
                ends.update(dict.fromkeys(chain, end))
        return tuple(ends[unit] for unit in range(len(self.all)))

    def _chain(self, unit: int, stops: Container[int] = ()) -> dict[int, None]:
        """Return the causes of a unit, in order, up to the first one in `stops`."""
        chain: dict[int, None] = {}
        step: int | None = unit
        while step is not None and step not in chain and step not in stops:
            chain[step] = None
            step = self.cause(step)
        return chain

    def recorded(self) -> Iterator[Decision]:
        """Yield the decisions as a file has them (see Decision)."""
        last = None
        for node, decision in zip(self.nodes, self.all, strict=True):
            yield msgspec.structs.replace(decision, outputs=()) if node == last else decision
            last = node

    def of_units(self, units: Sequence[int], sites: Iterable[CastSite], start: int = 0) -> Decisions:
        """Return the decisions on these units and sites alone, in this order, for positions from `start` on.

        What is left out is the cause of nothing, and no part of a site, any more.
        """
        places: dict[int | None, int] = {unit: start + place for place, unit in enumerate(units)}
        chosen = (self.all[unit] for unit in units)
        return Decisions(
            tuple(msgspec.structs.replace(each, cause=places.get(each.cause)) for each in chosen),
            tuple(site.of_units(places) for site in sites),
            tuple(self.nodes[unit] for unit in units),
        )


def of(
    graph: UnitGraph,
    painting: Painting,
    plan: Plan,
    cast_nodes: Sequence[ir.Node] = (),
    flops: Flops | None = None,
) -> Decisions:
    """Return the decisions of an analysis.

    The Cast sites are those of the Casts that the model has, then those that are planned, in their order;
    `cast_nodes` has a node for each of these once they are inserted.
    """
    planned = zip(plan.casts, cast_nodes or [None] * len(plan.casts), strict=True)
    return Decisions(
        tuple(_decisions(graph, painting, flops or {})),
        (*_existing(graph, plan.casts), *(_planned(graph, cast, node) for cast, node in planned)),
        tuple(unit.node for unit in graph.units),
    )


def _decisions(graph: UnitGraph, painting: Painting, flops: Flops) -> Iterator[Decision]:
    painted = zip(graph.units, painting.paints, painting.entries, strict=True)
    for node, units in itertools.groupby(painted, key=lambda each: each[0].node):
        operator, outputs = schema.written(node.domain, node.op_type), names_of_outputs(node)
        for unit, paint, entry in units:
            yield Decision(
                node=node.name or "",
                operator=operator,
                variable=str(unit.var),
                outputs=outputs,
                precision=paint.colour,
                rule=paint.rule,
                kind=entry.kind,
                evidence=entry.evidence,
                cause=paint.cause,
                flops=flops.get(node),
            )


def names_of_outputs(node: ir.Node) -> tuple[str, ...]:
    """Return the names of a node's outputs that have one; an empty name where none has."""
    return tuple(value.name for value in node.outputs if value.name) or ("",)


def without_model(recorded: Iterable[Decision], sites: Sequence[CastSite]) -> Decisions:
    """Return the decisions that a file has."""
    decided, nodes = list[Decision](), list[int]()
    for decision in recorded:
        is_same = bool(decided) and not decision.outputs
        outputs = decided[-1].outputs if is_same else decision.outputs
        decided.append(msgspec.structs.replace(decision, outputs=outputs) if is_same else decision)
        nodes.append(nodes[-1] if is_same else len(nodes))
    return Decisions(tuple(decided), tuple(sites), tuple(nodes))


def merged(before: Decisions, after: Decisions) -> Decisions:
    """Return the decisions of a second rewrite, and those of the first on nodes that only that one decided.

    `before` was read from the model that was rewritten again, so both speak of the same nodes.
    """
    again, sites = set(after.nodes), {site.output for site in after.cast_sites}
    retained = [unit for unit, node in enumerate(before.nodes) if node not in again]
    others = (site for site in before.cast_sites if site.output not in sites)
    left = before.of_units(retained, others, start=len(after.all))
    added = {site.output for site in before.cast_sites if site.added}
    ours = (
        msgspec.structs.replace(site, added=True) if site.output in added else site
        for site in after.cast_sites
    )
    return Decisions((*after.all, *left.all), (*ours, *left.cast_sites), (*after.nodes, *left.nodes))


# The sites of Casts.


def _existing(graph: UnitGraph, casts: Iterable[PlannedCast]) -> Iterator[CastSite]:
    """Yield the sites of the Casts in the model with float32 as their input or output type.

    Uses that move to the output of a planned Cast (`casts`) do not count.
    """
    existing_casts = dict.fromkeys(graph.units[unit].node for unit in graph.by_operator.get("Cast", ()))
    redirected_uses = {use for cast in casts for use in cast.uses} if existing_casts else set[Use]()
    for node in existing_casts:
        value = node.inputs[0] if not node.domain else None
        if value is not None:
            output = node.outputs[0]
            consumers = (unit for unit, use in graph.uses.get(output, ()) if use not in redirected_uses)
            ports = (port for port, value in enumerate(graph.root.outputs) if value is output)
            yield CastSite(
                names=_names(value, node, output),
                dtype=_element(node),
                origin=_origin(graph, value),
                producer=graph.producer.get(value),
                consumers=tuple(dict.fromkeys(consumers)),
                is_output=any(Use(graph.root, port) not in redirected_uses for port in ports),
                added=False,
            )


def _planned(graph: UnitGraph, cast: PlannedCast, node: ir.Node | None) -> CastSite:
    units = {use: unit for unit, use in graph.uses.get(cast.value, ())}
    output = f"{cast.value.name or 'value'}__{element_type_name(cast.dtype)}"
    return CastSite(
        names=_names(node.inputs[0], node, node.outputs[0]) if node else (*_names(cast.value), output),
        dtype=element_type_name(cast.dtype),
        origin=_origin(graph, cast.value),
        producer=graph.producer.get(cast.value),
        consumers=tuple(dict.fromkeys(units[use] for use in cast.uses if use in units)),
        is_output=any(use.holder is graph.root for use in cast.uses),
        added=True,
    )


def _names(*items: ir.Value | ir.Node | None) -> tuple[str, ...]:
    """Return the distinct names of these, without those that have none."""
    return tuple(dict.fromkeys(thing.name for thing in items if thing is not None and thing.name))


def _origin(graph: UnitGraph, value: ir.Value) -> Origin:
    if value in graph.producer:
        return Origin.UNIT
    producer, type_ = value.producer(), graph.types.get(value)
    if type_ is None or type_.dtype != ir.DataType.FLOAT:
        return Origin.ANOTHER
    if producer is None:
        return Origin.STORED if value.is_initializer() else Origin.INPUT
    return Origin.STORED if producer.op_type == "Constant" else Origin.ANOTHER


def _element(node: ir.Node) -> str:
    """Return the element type of a Cast's output; an empty string if it is not declared."""
    typed = schema.of(node)
    dtype = None if typed is None else schema.declared(node, typed)
    return "" if dtype is None else element_type_name(dtype)
