"""The decision on every unit and its reason, independent of the model, so that plan files can carry them."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.operator_lists import Entry
from amp_rewrite.rewriting import cast_sites
from amp_rewrite.rewriting.cast_sites import CastSite
from amp_rewrite.rewriting.plan import Plan


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one unit.

    `node` tells nodes apart and is the same for all units of one: names may be empty and may repeat. `defs`
    are the names of the node's outputs; `paint.cause` is a position among the decisions.
    """

    node: Hashable
    operator: str
    name: str
    defs: tuple[str, ...]
    variable: str
    paint: Paint
    entry: Entry

    @property
    def place(self) -> str:
        """The node's label: operator, and its name or that of its first output."""
        label = f"'{self.name}'" if self.name else f"-> '{next(iter(self.defs), '')}'"
        return f"{self.operator} {label}"

    @property
    def is_half(self) -> bool:
        """Return whether the unit is HALF."""
        return self.paint.colour is Colour.HALF

    @property
    def by_hand(self) -> bool:
        """Return whether the colour was edited in a saved plan, so that no rule gives it."""
        return self.paint.rule is not Rule.SETTLE and self.is_half is (self.paint.rule in _GIVE_FULL)


_GIVE_FULL = (Rule.DENY, Rule.LEFT, Rule.PRUNE, Rule.GATE)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of a whole model, in the order of its units, and the Cast sites that follow from them."""

    all: tuple[Decision, ...]
    cast_sites: tuple[CastSite, ...] = ()

    def label(self, unit: int) -> str:
        """Return the label of a unit: its node's, and the type variable where the node has several units."""
        decision, beside = (
            self.all[unit],
            (*self.all[max(unit - 1, 0) : unit], *self.all[unit + 1 : unit + 2]),
        )
        has_others = any(other.node == decision.node for other in beside)
        return f"{decision.place} ({decision.variable})" if has_others else decision.place

    def why(self, unit: int) -> tuple[int, ...]:
        """Return the chain of causes from a unit to its root, as Painting.why does.

        It ends at a colour that was edited by hand.
        """
        return tuple(self._chain(unit))

    def cause(self, unit: int) -> int | None:
        """Return the unit that caused the colour of another; None where the chain of causes ends."""
        decision = self.all[unit]
        return None if decision.by_hand or decision.paint.cause == unit else decision.paint.cause

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


def of(graph: UnitGraph, painting: Painting, plan: Plan, cast_nodes: Sequence[ir.Node] = ()) -> Decisions:
    """Return the decisions of an analysis; `node` of each is the ir.Node.

    The Cast sites are those of the Casts that the model has, then those that are planned, in their order;
    `cast_nodes` has a node for each of these once they are inserted.
    """
    sites = tuple(cast_sites.of(graph, plan.casts, cast_nodes))
    return Decisions(tuple(_decisions(graph, painting)), sites)


def _decisions(graph: UnitGraph, painting: Painting) -> Iterator[Decision]:
    outputs = made_by(unit.node for unit in graph.units)
    for unit, paint, entry in zip(graph.units, painting.paints, painting.entries, strict=True):
        yield about(unit.node, outputs[unit.node], str(unit.var), paint, entry)


def made_by(nodes: Iterable[ir.Node]) -> dict[ir.Node, tuple[str, ...]]:
    """Return the output names of each node, once for all its units: a Loop can have thousands."""
    return {node: tuple(value.name for value in node.outputs if value.name) for node in dict.fromkeys(nodes)}


def about(node: ir.Node, outputs: tuple[str, ...], variable: str, paint: Paint, entry: Entry) -> Decision:
    """Return the decision on one unit of a node with outputs of these names."""
    return Decision(
        node=node,
        operator=schema.written(node.domain, node.op_type),
        name=node.name or "",
        defs=outputs,
        variable=variable,
        paint=paint,
        entry=entry,
    )


def merged(before: Decisions, after: Decisions) -> Decisions:
    """Return the decisions of a second rewrite, and those of the first on nodes that only that one decided.

    `before` was read from the model that was rewritten again, so both speak of the same nodes.
    """
    again = {decision.node for decision in after.all}
    retained = [i for i, decision in enumerate(before.all) if decision.node not in again]
    positions = {old: len(after.all) + new for new, old in enumerate(retained)}
    new_casts = {site.node for site in before.cast_sites if site.added}
    ours = (replace(c, added=c.added or c.node in new_casts) for c in after.cast_sites)
    decided = {site.node for site in after.cast_sites}
    others = (_moved_site(c, positions) for c in before.cast_sites if c.node not in decided)
    units = (*after.all, *(_moved_decision(before.all[i], positions) for i in retained))
    return Decisions(units, (*ours, *others))


def _moved_decision(decision: Decision, positions: Mapping[int, int]) -> Decision:
    cause = decision.paint.cause
    return replace(
        decision, paint=replace(decision.paint, cause=None if cause is None else positions.get(cause))
    )


def _moved_site(site: CastSite, positions: Mapping[int, int]) -> CastSite:
    producer = None if site.producer is None else positions.get(site.producer)
    consumers = tuple(positions[i] for i in site.consumers if i in positions)
    return replace(site, producer=producer, consumers=consumers)
