"""What a rewrite did, as one frozen value."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.matching import Matched
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.rewriting.plan import Plan, Storage


@dataclass(frozen=True, slots=True)
class Nodes:
    """How many nodes have all their float32 in half, some of it, none; and how many had none."""

    half: int
    mixed: int
    full: int
    other: int

    @property
    def total(self) -> int:
        """All nodes, subgraphs included."""
        return self.half + self.mixed + self.full + self.other


@dataclass(frozen=True, slots=True)
class Report:
    """What a rewrite did. Sizes are in bytes, with external data; `seconds` are wall time by stage.

    `changed` says whether the result differs from the original at all.
    `saturated` and `flushed` count stored values that were clamped to half's range, and that became
    zero there; `observed` counts the units that stay float32 for what a run showed, and `matched` the nodes
    that each pin matches, and each operator that was put on another list. `broken` says what is wrong with
    the result (nothing, or the tool has failed), `warnings` what a user should know.
    """

    half: str
    changed: bool
    nodes: Nodes
    casts_added: int
    stored_half: int
    stored_both: int
    saturated: int
    flushed: int
    observed: int = 0
    casts_removed: int = 0
    size_before: int = 0
    size_after: int = 0
    matched: tuple[Matched, ...] = ()
    warnings: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the result is a valid model with the inputs and outputs that it should have."""
        return not self.broken

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self) | {"ok": self.ok, "seconds": dict(self.seconds)}


class Extent(enum.IntEnum):
    """How much of a node's float32 becomes half."""

    NONE = 0
    SOME = 1
    ALL = 2


def extents(graph: UnitGraph, painting: Painting) -> dict[ir.Node, Extent]:
    """How much of every node that has float32 becomes half."""
    found: dict[ir.Node, Extent] = {}
    for unit in graph.units:
        here = Extent.ALL if painting.is_half(unit.index) else Extent.NONE
        found[unit.node] = here if found.setdefault(unit.node, here) is here else Extent.SOME
    return found


def count_nodes(graph: UnitGraph, painting: Painting) -> Nodes:
    """The nodes of a model by colour."""
    found = Counter(extents(graph, painting).values())
    total = sum(map(len, graph.nodes.values()))
    return Nodes(found[Extent.ALL], found[Extent.SOME], found[Extent.NONE], total - found.total())


def of_plan(plan: Plan, nodes: Nodes) -> Report:
    """What a plan alone says of a rewrite; sizes, times and verdicts are still to come."""
    stored = plan.tensors
    return Report(
        half=plan.half.name,
        changed=bool(plan),
        nodes=nodes,
        casts_added=len(plan.casts),
        stored_half=sum(storing.storage is Storage.HALF for storing in stored),
        stored_both=sum(storing.storage is Storage.BOTH for storing in stored),
        saturated=sum(change.saturates for change in (*stored, *plan.attributes)),
        flushed=sum(change.flushes for change in (*stored, *plan.attributes)),
    )
