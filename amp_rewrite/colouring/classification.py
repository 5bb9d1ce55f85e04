"""Unit -> Kind: what the user, the schema, the ranges and the lists say of it, in that order of authority."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx_ir as ir

from amp_rewrite.analysis.findings import Finding
from amp_rewrite.analysis.units import Unit, UnitGraph, value_of
from amp_rewrite.colouring.pins import rulings
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import attribute_types, element_types
from amp_rewrite.policy import targets
from amp_rewrite.policy.operator_lists import Entry, Kind, OpLists
from amp_rewrite.policy.options import Level, Pins
from amp_rewrite.policy.targets import Target

BY_SCHEMA = "schema"
BY_PIN = "pin"
BY_LEVEL = "level"
BY_TARGET = "target"
"""Where an entry comes from, besides a finding's source, a list's name and a flag such as `--allow`."""


def classify(
    graph: UnitGraph,
    lists: OpLists,
    half: Half,
    findings: Mapping[int, Finding],
    pins: Pins,
    level: Level,
    target: Target = targets.ANY,
) -> tuple[Entry, ...]:
    """What holds of every unit: its kind, why, and who says so.

    Raises OptionError for a pin that matches no node, that asks for what no schema allows, or that another
    pin contradicts.
    """
    listed = functools.cache(functools.partial(_listed, lists, half, level, target))
    entries = [
        listed(unit.node.domain, listed_as(unit.node), unit.allowed, unit.runs) for unit in graph.units
    ]
    for index, finding in findings.items():
        if _yields(entries[index], finding, level):
            entries[index] = kept(entries[index], finding.reason, finding.source)
    old = _old(graph.root)
    for unit in graph.units:
        bound = old or _bound(unit, graph.root)
        if bound:
            entries[unit.index] = Entry(Kind.FIXED, bound, source=BY_SCHEMA)
    _pin(graph, entries, pins)
    return tuple(entries)


def _listed(
    lists: OpLists,
    half: Half,
    level: Level,
    target: Target,
    domain: str,
    op_type: str,
    allowed: frozenset[str],
    runs: bool,
) -> Entry:
    if not allowed:
        return Entry(Kind.FIXED, "the operator, or a part of it, is unknown here", source=BY_SCHEMA)
    if (domain, op_type) == ("", "Cast"):
        return Entry(Kind.FIXED, "a Cast takes the types that are beside it", source=lists.name)
    entry = _entry(lists, domain, op_type)
    if entry is None:
        entry = Entry(Kind.FIXED, f"the operator is on no list of {lists.name}", source=lists.name)
    if not any(half.tensor in kind for kind in allowed):
        return _held(entry, f"the schema has no {half.name} here", BY_SCHEMA)
    if not runs and not entry.source.startswith("--"):
        entry = _held(entry, f"{target.name} has no {half.name} kernel", BY_TARGET)
    return _LEVELS[level](entry, op_type)


SQUARE = "Mul(x,x)"
"""What lists call a Mul of a value with itself: it overflows as Pow does."""


def listed_as(node: ir.Node) -> str:
    """The name under which lists and flags speak of a node: its operator's, or that of a square."""
    square = node.op_type == "Mul" and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    return SQUARE if square and not node.domain else node.op_type


def _entry(lists: OpLists, domain: str, name: str) -> Entry | None:
    """What the lists say; a user who speaks of Mul speaks of squares too."""
    if name != SQUARE:
        return lists.find(domain, name)
    plain = lists.find(domain, "Mul")
    asked = plain is not None and plain.source.startswith("--")
    return plain if asked else lists.find(domain, SQUARE) or plain


def _tensor_cores_only(entry: Entry, _: str) -> Entry:
    if entry.kind in (Kind.ALLOW, Kind.FIXED):
        return entry
    return Entry(Kind.FIXED, "not on the allow list, and only that is asked for", source=BY_LEVEL)


def _infer_as_deny(entry: Entry, _: str) -> Entry:
    if entry.kind is not Kind.INFER:
        return entry
    return Entry(Kind.DENY, f"infer is treated as deny ({entry.reason})", source=BY_LEVEL)


def _force_all(entry: Entry, op_type: str) -> Entry:
    if op_type in _CASTS or entry.source.startswith("--"):
        return entry
    return Entry(Kind.ALLOW, "everything that the types allow is forced", source=BY_LEVEL)


_CASTS = frozenset(("Cast", "CastLike", "BitCast"))
_LEVELS: Mapping[Level, Callable[[Entry, str], Entry]] = {
    Level.DEFAULT: lambda entry, _: entry,
    Level.TENSOR_CORES_ONLY: _tensor_cores_only,
    Level.TREAT_INFER_AS_DENY: _infer_as_deny,
    Level.UNSAFE_FORCE_ALL: _force_all,
}


def _held(entry: Entry, reason: str, source: str) -> Entry:
    """What holds a unit in float32. What is denied stays denied: what it feeds is no less suspect."""
    kind = Kind.DENY if entry.kind is Kind.DENY else Kind.FIXED
    return Entry(kind, reason, source=source)


def kept(entry: Entry, reason: str, source: str) -> Entry:
    """What a pin or a finding holds in float32, with the kind that it had: half elsewhere goes by that."""
    return replace(_held(entry, reason, source), held=entry.held or entry.kind)


def _yields(entry: Entry, finding: Finding, level: Level) -> bool:
    """Whether an entry gives way to a finding."""
    asked = entry.source.startswith("--") and entry.kind is not Kind.FIXED
    forced = level is Level.UNSAFE_FORCE_ALL and not finding.always
    return not asked and entry.source != BY_SCHEMA and not forced


def _bound(unit: Unit, root: ir.Graph) -> str:
    """Why the node itself ties this unit to float32, or nothing."""
    typed = attribute_types.of(unit.node)
    if typed is not None and typed.var == unit.var.name and not typed.settable:
        return f"the attribute {typed.attribute} sets this type, and means more than a type"
    if unit.dense:
        return ""
    if unit.node.op_type == "Optional" and "type" in unit.node.attributes:
        return "the attribute type spells the element type out"
    values = (*unit.defs, *map(value_of, unit.uses))
    if any(value in root.outputs or value in root.inputs for value in values):
        return "a sequence or optional at the border of the model keeps its type"
    return ""


def _old(root: ir.Graph) -> str:
    """Why nothing in a model can change, or nothing."""
    version = element_types.default_opset(root.opset_imports)
    return f"runtimes have no Cast for opset {version}" if version < attribute_types.FIRST_TYPED_CAST else ""


def _pin(graph: UnitGraph, entries: list[Entry], pins: Pins) -> None:
    """A pin holds for the nodes that it names, and for all that stands in their bodies."""
    free = [unit.index for unit in graph.units if entries[unit.index].source != BY_SCHEMA]
    for unit, ruling in rulings(graph, pins, entries, free).items():
        if ruling.forces:
            entries[unit] = Entry(Kind.ALLOW, f"forced by {ruling.pattern!r}", source=BY_PIN)
        else:
            entries[unit] = kept(entries[unit], kept_by(ruling.pattern), BY_PIN)


def kept_by(pattern: str) -> str:
    """The reason of what a --keep-full holds in float32."""
    return f"kept by {pattern!r}"
