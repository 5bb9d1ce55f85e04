"""The decisions of a rewrite in the metadata of its result, so that it can be explained without the original.

All stands in the metadata of the model, as JSON under KEY:

    {"format": 3, "entries": [{"kind": "allow", "follow": false, "authority": "list", ...}, ...],
     "paints": [["full", "deny", 3], ...], "nodes": "eJyrVsrMK0ktyk..."}

`entries` come from lists, findings and pins, and `paints` are the distinct decisions, each once. `nodes` says
which of these every node has, compressed: a record in each node would double the file of a large model.
"""

from __future__ import annotations

import base64
import itertools
import json
import operator
import re
import zlib
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import onnx_ir as ir

from amp_rewrite.analysis.observed import Held
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule
from amp_rewrite.errors import ModelError
from amp_rewrite.model.output_paths import DECISIONS
from amp_rewrite.onnx_facts import declared_types
from amp_rewrite.policy.entries import Entry, Kind
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.rewriting import cast_sites, decisions, records
from amp_rewrite.rewriting.cast_sites import CastSite, Origin
from amp_rewrite.rewriting.decisions import Decision, Decisions
from amp_rewrite.rewriting.plan import Plan, Rescaled, Scaled
from amp_rewrite.rewriting.records import Count, EntryRecord, Integer

TRAINING = "amp_rewrite.train."
"""The prefix of the metadata keys for the spec of a train step: loss, seed, state, grads."""

KEY = DECISIONS
"""The metadata key of a model under which the decisions are stored."""

RESCALED = "amp_rewrite.rescaled"
"""The metadata key of what is stored times powers of two (Scaled), since all rewrites of a model."""

FORMAT = 3
"""The version of the format; other versions are not read."""


class _PaintRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    colour: Colour
    rule: Rule
    entry: Count


class _Table(msgspec.Struct):
    """The top level."""

    format: int
    entries: list[EntryRecord]
    paints: list[_PaintRow]
    nodes: str


class _Texts(msgspec.Struct):
    """Texts as columns: the texts between numbers, by position in `templates`, and the numbers in them, each
    less the one at the same place in the text before. Numbered names compress to a tenth of a byte.
    """

    templates: list[list[str]]
    positions: list[Count]
    numbers: list[Integer]


class _CastRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The position of a Cast's node, less that of the Cast before; whether it was added, and why it stands.

    `producer` and the first of `consumers` are less the number of units before the node, and other consumers
    less the one before.
    """

    node: Count
    added: bool
    origin: Origin
    producer: Integer | None
    consumers: list[Integer]
    is_output: bool


class _Columns(msgspec.Struct):
    """The columns of `nodes`.

    `names` and `counts` have an element for each node that has a record: its identifier (the first output),
    and the number of its units. The next three have one for each unit: its type variable, the position of its
    paint, and the number of the unit that caused it, less its own.
    """

    names: _Texts
    counts: list[Count]
    variables: _Texts
    paints: list[Count]
    causes: list[Integer | None]
    casts: list[_CastRow]


LIMIT = 1 << 28
"""The bytes of `nodes` above which it is not decompressed: no model of one protobuf has as many names."""


def update(
    model: ir.Model, graph: UnitGraph, painting: Painting, plan: Plan, cast_nodes: Sequence[ir.Node]
) -> tuple[str, ...]:
    """Write the decisions of a rewrite into its result, with those of an earlier one that still hold.

    `cast_nodes` has a node for each Cast of the plan. Returns the warnings for the user.
    """
    warnings: tuple[str, ...] = ()
    try:
        before, rescaled = read(model), read_rescaled(model)
    except ModelError as error:
        before, rescaled = None, Rescaled(())
        warnings = (f"what is left of an earlier rewrite is dropped: {error.problem}",)
    if plan.rescaled is not None:
        _write_rescaled(model, (rescaled, plan.rescaled))
    if before is None:
        painted = zip(graph.units, painting.paints, painting.entries, strict=True)
        units = ((unit.node, str(unit.var), paint, entry) for unit, paint, entry in painted)
        _write(model, units, cast_sites.of(graph, plan.casts, cast_nodes))
    else:
        write(model, decisions.merged(before, decisions.of(graph, painting, plan, cast_nodes)))
    return warnings


def _write_rescaled(model: ir.Model, parts: Sequence[Rescaled]) -> None:
    """Write the exponents of values into the metadata of their model; those of one value add up."""
    totals = Counter[tuple[str, str | None, int]]()
    for each in itertools.chain(*(part.values for part in parts)):
        totals[each.value, each.reader, each.port] += each.exponent
    values = tuple(Scaled(value, reader, port, e) for (value, reader, port), e in totals.items() if e)
    products = tuple(itertools.chain(*(part.products for part in parts)))
    norms = tuple(itertools.chain(*(part.norms for part in parts)))
    rescaled = Rescaled(values, products=products, norms=norms)
    model.metadata_props[RESCALED] = _compressed(records.plain(rescaled))


def read_rescaled(model: ir.Model) -> Rescaled:
    """Return what a model stores times powers of two; raise ModelError where that is damaged."""
    text = model.metadata_props.get(RESCALED)
    try:
        return Rescaled(()) if text is None else records.convert(_decompressed(text), Rescaled)
    except ValueError as error:
        raise ModelError(f"the exponents in its metadata are damaged ({error})"[:200]) from error


def declare_types(model: ir.Model, op_types: Mapping[str, str]) -> None:
    """Record the declared types of operators in the metadata of a model."""
    if op_types:
        model.metadata_props[declared_types.KEY] = json.dumps(dict(op_types))


def forget(model: ir.Model, key: str) -> None:
    """Remove one of our records from the metadata of a model of which it does not hold, or is not wanted."""
    model.metadata_props.pop(key, None)


def write(model: ir.Model, decided: Decisions) -> None:
    """Write the decisions into the metadata of their model, in place of any older ones."""
    units = ((decision.node, decision.variable, decision.paint, decision.entry) for decision in decided.all)
    _write(model, units, decided.cast_sites)


def _write(
    model: ir.Model, units: Iterable[tuple[Hashable, str, Paint, Entry]], sites: Iterable[CastSite]
) -> None:
    entries = _Entries()
    paints: _Positions[tuple[str, str, int]] = _Positions()
    variables: list[str] = []
    of_node: dict[Hashable, list[int]] = {}
    decided: list[tuple[int, int | None]] = []
    for node, variable, paint, entry in units:
        of_node.setdefault(node, []).append(len(decided))
        variables.append(variable)
        row = paints[paint.colour.value, paint.rule.value, entries.position(entry)]
        decided.append((row, paint.cause))
    casts = {site.node: site for site in sites}
    nodes = [node for node in model.graph.all_nodes() if node in of_node or node in casts]
    order = [position for node in nodes for position in of_node.get(node, ())]
    numbers: dict[int | None, int] = {position: number for number, position in enumerate(order)}
    content = {
        "format": FORMAT,
        "entries": entries.table,
        "paints": list(paints),
        "nodes": _compressed(
            {
                "names": _columns(map(_name, nodes)),
                "counts": [len(of_node.get(node, ())) for node in nodes],
                "variables": _columns(variables[position] for position in order),
                "paints": [decided[position][0] for position in order],
                "causes": [_less(numbers.get(decided[p][1]), number) for number, p in enumerate(order)],
                "casts": list(_cast_rows(nodes, of_node, casts, numbers)),
            }
        ),
    }
    remove(model)
    model.metadata_props[KEY] = json.dumps(content, separators=(",", ":"), ensure_ascii=False)


_T = TypeVar("_T")


class _Positions(dict[_T, int]):
    """The position of each distinct key, in the order of first access."""

    def __missing__(self, key: _T) -> int:
        self[key] = len(self)
        return self[key]


class _Entries:
    """A table of entries, and the position of each."""

    def __init__(self) -> None:
        self.table: list[dict[str, Any]] = []
        self._positions: dict[Entry, int] = {}
        self._by_identity: dict[int, int] = {}

    def position(self, entry: Entry) -> int:
        """Return the position of an entry, looked up by identity first, as many units share one entry."""
        position = self._by_identity.get(id(entry))
        if position is None:
            bare = replace(entry, unheld=None)  # not part of a record
            position = self._by_identity[id(entry)] = self._positions.setdefault(bare, len(self.table))
            if position == len(self.table):
                self.table.append(records.describe_entry(bare))
        return position


def _cast_rows(
    nodes: Sequence[ir.Node],
    units: Mapping[Hashable, Sequence[int]],
    casts: Mapping[Hashable, CastSite],
    numbers: Mapping[int | None, int],
) -> Iterator[list[Any]]:
    last = before = 0
    for position, node in enumerate(nodes):
        site = casts.get(node)
        if site is not None:
            consumers = [numbers[unit] for unit in site.consumers if unit in numbers]
            differences = [one - other for one, other in zip(consumers, [before, *consumers], strict=False)]
            producer = _less(numbers.get(site.producer), before)
            row = [position - last, site.added, site.origin.value, producer, differences, site.is_output]
            yield row
            last = position
        before += len(units.get(node, ()))


def _less(number: int | None, other: int) -> int | None:
    return None if number is None else number - other


def _name(node: ir.Node) -> str:
    """Return the name of a node: that of its first named output, else its own."""
    return next((value.name for value in node.outputs if value.name), node.name or "")


_NUMBER = re.compile("((?<![0-9])(?:0|[1-9][0-9]{0,17})(?![0-9]))")
"""A number in a text that can be written again from its value."""


def _columns(texts: Iterable[str]) -> dict[str, Any]:
    """Return texts as columns (_Texts)."""
    templates: _Positions[tuple[str, ...]] = _Positions()
    positions, differences, last = list[int](), list[int](), list[int]()
    for text in texts:
        parts = _NUMBER.split(text)
        positions.append(templates[tuple(parts[::2])])
        numbers = list(map(int, parts[1::2]))
        differences += map(operator.sub, numbers, itertools.chain(last, itertools.repeat(0)))
        last = numbers
    return {"templates": list(templates), "positions": positions, "numbers": differences}


def _read_texts(columns: _Texts) -> Iterator[str]:
    """Yield the texts in columns; ValueError where these do not fit together."""
    differences, last = iter(columns.numbers), list[int]()
    for position in columns.positions:
        first, *others = _at(columns.templates, position, "template") or [""]
        here = itertools.islice(differences, len(others))
        last = list(map(operator.add, here, itertools.chain(last, itertools.repeat(0))))
        yield first + "".join(f"{number}{part}" for number, part in zip(last, others, strict=True))


def _compressed(content: object) -> str:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _decompressed(text: str) -> Any:
    stream = zlib.decompressobj()
    try:
        return json.loads(stream.decompress(base64.b64decode(text), LIMIT))
    except zlib.error as error:
        raise ValueError(str(error)) from error


def purpose_warnings(model: ir.Model) -> list[str]:
    """Return a warning for a train step, which its metadata describe."""
    is_step = any(key.startswith(TRAINING) for key in model.metadata_props)
    scale = "its metadata describe a train step, which needs a loss scale: `amp-rewrite train` inserts it"
    return [scale] if is_step else []


def remove(model: ir.Model) -> None:
    """Remove our metadata."""
    model.metadata_props.pop(KEY, None)


def read(model: ir.Model) -> Decisions | None:
    """Return the decisions that a model carries; None when it carries none.

    Nodes removed or renamed since have none, and units that they caused have no cause.
    Raises ModelError when they are damaged.
    """
    if KEY not in model.metadata_props:
        return None
    try:
        return _Reader(model, model.metadata_props[KEY]).decisions()
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"the decisions in its metadata are damaged ({error})"[:200],
            remedy="rewrite the original again to have them",
        ) from error


def read_evidence_of_runs(model: ir.Model) -> Held:
    """Return the evidence from runs for which an earlier rewrite kept values in float32, by value name.

    A second rewrite may observe no run, so the evidence is carried over. It includes operators that a list
    denied: after a failed comparison, bounds no longer free them. Damaged decisions, of which `update` warns,
    yield nothing.
    """
    if not any(marker in model.metadata_props.get(KEY, "") for marker in _TOLD):
        return {}
    try:
        decided = read(model)
    except ModelError:
        return {}
    full_decisions = (decision for decision in (decided.all if decided else ()) if not decision.is_half)
    return {
        name: decision.entry.evidence
        for decision in full_decisions
        if _holds(decision.entry)
        for name in decision.defs
    }


_TOLD = (Authority.OBSERVATION.value, f'"{Kind.DENY.value}"')
"""Substrings of the metadata, one of which is present if there can be evidence from runs."""


def _holds(entry: Entry) -> bool:
    denied = entry.kind is Kind.DENY and entry.authority is Authority.LIST
    return denied or entry.authority is Authority.OBSERVATION


class _Reader:
    def __init__(self, model: ir.Model, text: str) -> None:
        table = records.parse(text, _Table, FORMAT)
        entries = [record.entry for record in table.entries]
        self._paints = [(row.colour, row.rule, _at(entries, row.entry, "entry")) for row in table.paints]
        self._columns = records.convert(_decompressed(table.nodes), _Columns, "nodes")
        by_name: dict[str, deque[ir.Node]] = {}
        for node in model.graph.all_nodes():
            by_name.setdefault(_name(node), deque()).append(node)
        recorded = map(by_name.get, _read_texts(self._columns.names))
        self._variables = list(_read_texts(self._columns.variables))
        self._nodes = [waiting.popleft() if waiting else None for waiting in recorded]

    def decisions(self) -> Decisions:
        """Return the decisions on nodes that are in the model, in the order of writing."""
        counts = self._columns.counts
        lengths = {len(self._columns.paints), len(self._columns.causes), len(self._variables)}
        if len(counts) != len(self._nodes) or lengths != {sum(counts)}:
            raise ValueError("the columns of nodes do not fit together")
        owners = [node for node, count in zip(self._nodes, counts, strict=True) for _ in range(count)]
        there = [number for number, node in enumerate(owners) if node is not None]
        self._positions = {number: position for position, number in enumerate(there)}
        outputs = decisions.made_by(filter(None, self._nodes))
        units = [self._decision(owners[number], number, outputs) for number in there]
        return Decisions(tuple(units), tuple(self._cast_sites(list(itertools.accumulate(counts, initial=0)))))

    def _decision(
        self, node: ir.Node | None, number: int, outputs: Mapping[ir.Node, tuple[str, ...]]
    ) -> Decision:
        assert node is not None, "only nodes that are in the model are asked for"
        colour, rule, entry = _at(self._paints, self._columns.paints[number], "paint")
        cause = self._columns.causes[number]
        paint = Paint(colour, rule, None if cause is None else self._positions.get(number + cause))
        return decisions.about(node, outputs[node], self._variables[number], paint, entry)

    def _cast_sites(self, before: Sequence[int]) -> Iterator[CastSite]:
        position = 0
        for row in self._columns.casts:
            position += row.node
            node, base = _at(self._nodes, position, "node"), before[position]
            if node is not None:
                yield self._cast_site(row, node, base)

    def _cast_site(self, row: _CastRow, node: ir.Node, base: int) -> CastSite:
        if not node.inputs or not node.outputs:
            raise ValueError(f"node {node.name!r} is not a Cast")
        producer = None if row.producer is None else self._positions.get(base + row.producer)
        numbers = itertools.islice(itertools.accumulate(row.consumers, initial=base), 1, None)
        return CastSite(
            node=node,
            names=cast_sites.names(node.inputs[0], node, node.outputs[0]),
            dtype=cast_sites.element(node),
            origin=row.origin,
            producer=producer,
            consumers=tuple(self._positions[number] for number in numbers if number in self._positions),
            is_output=row.is_output,
            added=row.added,
        )


def _at(sequence: Sequence[_T], position: int, noun: str) -> _T:
    if position >= len(sequence):
        raise ValueError(f"there is no {noun} {position}")
    return sequence[position]
