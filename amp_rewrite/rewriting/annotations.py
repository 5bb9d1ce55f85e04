"""The decisions of a rewrite in the metadata of its result, so that it can be explained without the original.

Everything is JSON under KEY. The model has the entries that its units share:

    {"format": 2, "entries": [{"kind": "allow", "follow": false, "authority": "list", ...}, ...]}

and every node for which something was decided has a row for each of its units, and one if it is a Cast that
stands between types:

    {"units": [[17, "T", "full", "deny", 12, 3]], "cast": [true, "unit", 17, [18, 21], false]}

UNIT and CAST name what the places of a row hold; `records` has the form of each.

Metadata of nodes came with IR version 10. Older versions have no rule against it: onnx's checker and
onnxruntime take it at every version, and a reader that does not know it skips it, as protobuf has it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from amp_rewrite import version
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.painting import Paint, Painting
from amp_rewrite.errors import ModelError
from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.policy.operator_lists import Entry
from amp_rewrite.rewriting import cast_sites, decision_records, decisions, json_fields
from amp_rewrite.rewriting.cast_sites import CastSite
from amp_rewrite.rewriting.decision_records import Record
from amp_rewrite.rewriting.decisions import Decision, Decisions
from amp_rewrite.rewriting.json_fields import COUNT, FLAG, LIST, OBJECT, TEXT, JsonFields, optional
from amp_rewrite.rewriting.plan import Plan

KEY = "amp_rewrite"
"""Under which the metadata of models and nodes holds what is ours."""

RESTORED = "amp_rewrite.restored"
"""The same of a model that was made float32 again: the version that did."""

FORMAT = 2
"""The version of what stands there; another version is not read."""

UNIT: JsonFields = {
    "unit": COUNT,
    "variable": TEXT,
    **decision_records.paint_fields(COUNT),
    "entry": COUNT,
}
"""A row of a unit: its number, its type variable, its paint, and the position of its entry."""

CAST: JsonFields = {"added": FLAG, **decision_records.cast_site_fields(COUNT)}
"""A row of a Cast: whether it was added, and why it stands, with units by number."""

_NODE: JsonFields = {"units": optional(LIST), "cast": optional(LIST)}


def update(
    model: ir.Model, graph: UnitGraph, painting: Painting, plan: Plan, placed: Sequence[ir.Node]
) -> tuple[str, ...]:
    """Leaves the decisions of a rewrite in its result, with those of an earlier one that still hold.

    `placed` has a node for each Cast of the plan. Returns what a user should know.
    """
    warnings: tuple[str, ...] = ()
    try:
        before = read(model)
    except ModelError as error:
        before, warnings = None, (f"what is left of an earlier rewrite is dropped: {error.problem}",)
    if before is None:
        write_first(model, graph, painting, cast_sites.of(graph, plan.casts, placed))
    else:
        write(model, decisions.merged(before, decisions.of(graph, painting, plan, placed)))
    return warnings


def mark_restored(model: ir.Model) -> None:
    """Marks a model as made float32 again, by this version."""
    model.metadata_props[RESTORED] = version.installed()


def write(model: ir.Model, found: Decisions) -> None:
    """Leaves the decisions in the metadata of the model that they are about, and nothing older."""
    units = ((decision.node, decision.variable, decision.paint, decision.entry) for decision in found.all)
    _write(model, graphs(model.graph), units, found.cast_sites)


def write_first(model: ir.Model, graph: UnitGraph, painting: Painting, sites: Iterable[CastSite]) -> None:
    """Leaves what `write` would of these, in a model that carries no decisions yet."""
    painted = zip(graph.units, painting.paints, painting.entries, strict=True)
    units = ((unit.node, str(unit.var), paint, entry) for unit, paint, entry in painted)
    _write(model, graph.nodes, units, sites)


def _write(
    model: ir.Model,
    held: Iterable[ir.Graph],
    units: Iterable[tuple[Hashable, str, Paint, Entry]],
    sites: Iterable[CastSite],
) -> None:
    entries = _Entries()
    rows: dict[Hashable, str] = {}
    for number, (node, variable, paint, entry) in enumerate(units):
        row = _row(number, variable, paint, entries.number(entry))
        rows[node] = f"{rows[node]},{row}" if node in rows else row
    casts = {site.node: _cast_row(site) for site in sites}
    for graph in held:
        for node in graph:
            if node in rows or node in casts:
                node.metadata_props[KEY] = _node_text(rows.get(node), casts.get(node))
            else:
                node.metadata_props.pop(KEY, None)
    content = {"format": FORMAT, "entries": entries.table}
    model.metadata_props[KEY] = json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _row(number: int, variable: str, paint: Paint, entry: int) -> str:
    """A row of a unit as JSON; `json` takes several times as long, and a model has a row for every unit."""
    cause = "null" if paint.cause is None else paint.cause
    return f'[{number},"{variable}","{paint.colour.value}","{paint.rule.value}",{cause},{entry}]'


def _cast_row(site: CastSite) -> str:
    """A row of a Cast as JSON."""
    added, is_output = _JSON_FLAG[site.added], _JSON_FLAG[site.is_output]
    producer = "null" if site.producer is None else site.producer
    return f'[{added},"{site.origin.value}",{producer},[{",".join(map(str, site.consumers))}],{is_output}]'


_JSON_FLAG = ("false", "true")


def _node_text(units: str | None, cast: str | None) -> str:
    if cast is None:
        return f'{{"units":[{units}]}}'
    return f'{{"units":[{units}],"cast":{cast}}}' if units else f'{{"cast":{cast}}}'


class _Entries:
    """A table of entries, and where each stands in it."""

    def __init__(self) -> None:
        self.table: list[Record] = []
        self._numbers: dict[Entry, int] = {}
        self._known: dict[int, int] = {}

    def number(self, entry: Entry) -> int:
        """The position of an entry. The same entry serves many units: it is known by identity first."""
        number = self._known.get(id(entry))
        if number is None:
            told = replace(entry, unheld=None)  # a record does not have it
            number = self._known[id(entry)] = self._numbers.setdefault(told, len(self.table))
            if number == len(self.table):
                self.table.append(decision_records.of_entry(told))
        return number


def remove(model: ir.Model) -> None:
    """Takes out what is ours."""
    model.metadata_props.pop(KEY, None)
    for node in every_node(model.graph):
        node.metadata_props.pop(KEY, None)


def read(model: ir.Model) -> Decisions | None:
    """The decisions that a model carries; None when it carries none.

    A cause that is no longer in the model is unknown: its number is not that of a unit.
    Raises ModelError when they are damaged.
    """
    if KEY not in model.metadata_props:
        return None
    nodes = [node for node in every_node(model.graph) if KEY in node.metadata_props]
    try:
        return _Reader(_entries(model.metadata_props[KEY])).decisions(nodes)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"the decisions in its metadata are damaged ({error})"[:200],
            remedy="rewrite the original again to have them",
        ) from error


def _entries(text: str) -> Sequence[Entry]:
    content = json.loads(text)
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise ValueError(f"format {found}, and {FORMAT} is read here")
    json_fields.check("", content, {"entries": LIST})
    json_fields.check_rows("entries", content["entries"], decision_records.ENTRY_FIELDS)
    return [decision_records.entry(record) for record in content["entries"]]


def _rows(node: ir.Node) -> Record:
    """What a node carries: `units`, and `cast` if it is one, as records."""
    where = f"node {node.name!r}: "
    content = json.loads(node.metadata_props[KEY])
    if not OBJECT.holds(content):
        raise ValueError(f"{where}{content!r} is not an object"[:100])
    json_fields.check(where, content, _NODE)
    units = [_record(where, row, UNIT) for row in content.get("units", [])]
    casts = [_record(where, content["cast"], CAST)] if "cast" in content else []
    return {"units": units, "casts": casts}


def _record(where: str, row: object, fields: JsonFields) -> Record:
    if not isinstance(row, list) or len(row) != len(fields):
        raise ValueError(f"{where}{row!r} is not {', '.join(fields)}"[:100])
    record = dict(zip(fields, row, strict=True))
    json_fields.check(where, record, fields)
    return record


class _Reader:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._positions: dict[int, int] = {}
        self._defs: Mapping[ir.Node, tuple[str, ...]] = {}

    def decisions(self, nodes: Sequence[ir.Node]) -> Decisions:
        """What the nodes say, in the order of the numbers that they were written with."""
        rows = [(node, _rows(node)) for node in nodes]
        units = [(record, node) for node, carried in rows for record in carried["units"]]
        units.sort(key=lambda unit: unit[0]["unit"])
        self._defs = decisions.made_by(nodes)
        self._positions = {record["unit"]: position for position, (record, _) in enumerate(units)}
        casts = tuple(self._cast_site(node, record) for node, carried in rows for record in carried["casts"])
        return Decisions(tuple(self._decision(node, record) for record, node in units), casts)

    def _decision(self, node: ir.Node, record: Record) -> Decision:
        if record["entry"] >= len(self._entries):
            raise ValueError(f"there is no entry {record['entry']}")
        paint = decision_records.paint({**record, "cause": self._positions.get(record["cause"])})
        entry = self._entries[record["entry"]]
        return decisions.about(node, self._defs[node], record["variable"], paint, entry)

    def _cast_site(self, node: ir.Node, record: Record) -> CastSite:
        if not node.inputs or not node.outputs:
            raise ValueError(f"node {node.name!r} is not a Cast")
        known = self._positions
        consumers = [known[number] for number in record["consumers"] if number in known]
        moved = {**record, "producer": known.get(record["producer"]), "consumers": consumers}
        names = cast_sites.names(node.inputs[0], node, node.outputs[0])
        return decision_records.cast_site(moved, node, names, cast_sites.element(node), added=record["added"])
