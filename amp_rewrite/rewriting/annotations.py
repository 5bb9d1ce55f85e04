"""The decisions of a rewrite in the metadata of its result, so that it can be explained without the original.

The model has a table of reasons under KEY, as JSON. Every node that something was decided for has, under the
same key, a row for each unit, and one if it is a Cast that stands between types; `; ` parts them:

    17 T full deny 3 12                     number, variable, colour, rule, reason, and the cause, if any
    cast added unit 17 18,21 out            by whom, where from, its maker, its readers; `-` is none

Metadata of nodes came with IR version 10. Older versions have no rule against it: onnx's checker and
onnxruntime take it at every version, and a reader that does not know it skips it, as protobuf has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.rules import Colour, Paint, Painting, Rule
from amp_rewrite.errors import ModelError
from amp_rewrite.model.traversal import graphs
from amp_rewrite.policy.operator_lists import Entry, Kind
from amp_rewrite.rewriting import cast_sites, decisions
from amp_rewrite.rewriting.cast_sites import CastSite, Origin
from amp_rewrite.rewriting.decisions import Decision, Decisions

KEY = "amp_rewrite"
"""Under which the metadata of models and nodes holds what is ours."""

FORMAT = 1
"""The version of what stands there; another version is not read."""


def write(model: ir.Model, found: Decisions) -> None:
    """Leaves the decisions in the metadata of the model that they are about, and nothing older."""
    units = ((decision.node, decision.variable, decision.paint, decision.entry) for decision in found.all)
    _write(model, graphs(model.graph), units, found.cast_sites)


def write_first(model: ir.Model, graph: UnitGraph, painting: Painting, crossings: Iterable[CastSite]) -> None:
    """Leaves what `write` would of these, in a model that carries no decisions yet, and makes none."""
    painted = zip(graph.units, painting.paints, painting.entries, strict=True)
    _write(
        model,
        graph.nodes,
        ((unit.node, str(unit.var), paint, entry) for unit, paint, entry in painted),
        crossings,
    )


def _write(
    model: ir.Model,
    held: Iterable[ir.Graph],
    units: Iterable[tuple[Hashable, str, Paint, Entry]],
    crossings: Iterable[CastSite],
) -> None:
    reasons = _Reasons()
    rows: dict[Hashable, list[str]] = {}
    for number, (node, variable, paint, entry) in enumerate(units):
        row = _row(number, variable, paint, reasons.number(entry))
        rows.setdefault(node, []).append(row)
    for crossing in crossings:
        rows.setdefault(crossing.node, []).append(_cast_row(crossing))
    for graph in held:
        for node in graph:
            if found_here := rows.get(node):
                node.metadata_props[KEY] = "; ".join(found_here)
            else:
                node.metadata_props.pop(KEY, None)
    content = {"format": FORMAT, "reasons": reasons.table}
    model.metadata_props[KEY] = json.dumps(content, separators=(",", ":"), ensure_ascii=False)


class _Reasons:
    """A table of reasons, and where each stands in it."""

    def __init__(self) -> None:
        self.table: list[tuple[str, str, str]] = []
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._known: dict[int, int] = {}

    def number(self, entry: Entry) -> int:
        """The position of an entry. The same entry serves many units: it is known by identity first."""
        number = self._known.get(id(entry))
        if number is None:
            row = (entry.kind.value, entry.reason, entry.source)
            number = self._known[id(entry)] = self._numbers.setdefault(row, len(self.table))
            if number == len(self.table):
                self.table.append(row)
        return number


def _row(number: int, variable: str, paint: Paint, reason: int) -> str:
    cause = "" if paint.cause is None else f" {paint.cause}"
    return f"{number} {variable} {paint.colour.value} {paint.rule.value} {reason}{cause}"


def _cast_row(crossing: CastSite) -> str:
    by = "added" if crossing.added else "given"
    maker = "-" if crossing.producer is None else str(crossing.producer)
    readers = ",".join(map(str, crossing.consumers)) or "-"
    return f"cast {by} {crossing.origin.value} {maker} {readers}{' out' if crossing.is_output else ''}"


def remove(model: ir.Model) -> None:
    """Takes out what is ours."""
    model.metadata_props.pop(KEY, None)
    for graph in graphs(model.graph):
        for node in graph:
            node.metadata_props.pop(KEY, None)


def read(model: ir.Model) -> Decisions | None:
    """The decisions that a model carries; None when it carries none.

    What a cause has become that is no longer in the model is not known: its number is none of a unit.
    Raises ModelError when they are damaged.
    """
    if KEY not in model.metadata_props:
        return None
    nodes = [node for graph in graphs(model.graph) for node in graph if KEY in node.metadata_props]
    try:
        return _Reader(_reasons(model.metadata_props[KEY])).decisions(nodes)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"the decisions in its metadata are damaged ({error})"[:200],
            remedy="rewrite the original again to have them",
        ) from error


def _reasons(text: str) -> Sequence[Entry]:
    content = json.loads(text)
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise ValueError(f"format {found}, and {FORMAT} is read here")
    rows = content.get("reasons")
    if not isinstance(rows, list):
        raise ValueError("reasons is no list")
    return [_reason(f"reasons[{position}]", row) for position, row in enumerate(rows)]


def _reason(path: str, row: object) -> Entry:
    if (
        not isinstance(row, list)
        or len(row) != len(_REASON)
        or not all(isinstance(part, str) for part in row)
    ):
        raise ValueError(f"{path} is not {', '.join(_REASON)} as texts")
    kind, reason, source = row
    if kind not in _KINDS:
        raise ValueError(f"{path} has the kind {kind!r}")
    return Entry(Kind(kind), reason, source=source)


_REASON = ("kind", "reason", "source")
_KINDS = frozenset(kind.value for kind in Kind)


T = TypeVar("T")


def _understood(read: Callable[[ir.Node, Sequence[str]], T], node: ir.Node, row: Sequence[str]) -> T:
    """What is read from a row of a node; ValueError, which quotes the row, where it holds something else."""
    try:
        return read(node, row)
    except (ValueError, LookupError, AttributeError) as error:
        raise ValueError(f"node {node.name!r} has the row {' '.join(row)[:60]!r}: {error}") from error


def _number(_: ir.Node, row: Sequence[str]) -> int:
    return _natural(row[0])


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text[:20]!r} is no number")
    return int(text)


class _Reader:
    def __init__(self, reasons: Sequence[Entry]) -> None:
        self._reasons = reasons
        self._positions: dict[int, int] = {}
        self._made: Mapping[ir.Node, tuple[str, ...]] = {}

    def decisions(self, nodes: Sequence[ir.Node]) -> Decisions:
        """What the nodes say, in the order of the numbers that they were written with."""
        rows = [(node, row.split()) for node in nodes for row in node.metadata_props[KEY].split("; ")]
        of_casts = [(node, row) for node, row in rows if row[:1] == ["cast"]]
        of_units = [(_understood(_number, node, row), node, row) for node, row in rows if row[:1] != ["cast"]]
        of_units.sort(key=lambda unit: unit[0])
        self._made = decisions.made_by(nodes)
        self._positions = {number: position for position, (number, *_) in enumerate(of_units)}
        casts = tuple(_understood(self._crossing, node, row) for node, row in of_casts)
        return Decisions(tuple(_understood(self._decision, node, row) for _, node, row in of_units), casts)

    def _decision(self, node: ir.Node, row: Sequence[str]) -> Decision:
        _, variable, colour, rule, reason, *cause = row
        found = self._positions.get(_natural(cause[0])) if cause else None
        if _natural(reason) >= len(self._reasons):
            raise ValueError(f"there is no reason {reason}")
        return decisions.about(
            node,
            self._made[node],
            variable,
            Paint(Colour(colour), Rule(rule), found),
            self._reasons[_natural(reason)],
        )

    def _crossing(self, node: ir.Node, row: Sequence[str]) -> CastSite:
        _, by, origin, maker, readers, *leaves = row
        numbers = () if readers == "-" else map(_natural, readers.split(","))
        return CastSite(
            node=node,
            names=cast_sites.names(node.inputs[0], node, node.outputs[0]),
            dtype=cast_sites.element(node),
            origin=Origin(origin),
            producer=None if maker == "-" else self._positions.get(_natural(maker)),
            consumers=tuple(self._positions[number] for number in numbers if number in self._positions),
            is_output=bool(leaves),
            added=by == "added",
        )


def merged(before: Decisions, after: Decisions) -> Decisions:
    """What a second rewrite decided, with what the first one did of nodes that the second had no say in.

    `before` was read from the model that was rewritten again, so both speak of the same nodes.
    """
    again = {decision.node for decision in after.all}
    kept = [i for i, decision in enumerate(before.all) if decision.node not in again]
    moved = {old: len(after.all) + new for new, old in enumerate(kept)}
    added = {crossing.node for crossing in before.cast_sites if crossing.added}
    ours = (replace(c, added=c.added or c.node in added) for c in after.cast_sites)
    decided = {crossing.node for crossing in after.cast_sites}
    others = (_moved_crossing(c, moved) for c in before.cast_sites if c.node not in decided)
    units = (*after.all, *(_moved_decision(before.all[i], moved) for i in kept))
    return Decisions(units, (*ours, *others))


def _moved_decision(decision: Decision, moved: Mapping[int, int]) -> Decision:
    cause = decision.paint.cause
    return replace(decision, paint=replace(decision.paint, cause=None if cause is None else moved.get(cause)))


def _moved_crossing(crossing: CastSite, moved: Mapping[int, int]) -> CastSite:
    producer = None if crossing.producer is None else moved.get(crossing.producer)
    consumers = tuple(moved[i] for i in crossing.consumers if i in moved)
    return replace(crossing, producer=producer, consumers=consumers)
