"""Classification of units: the kind of each, with the evidence of the highest authority on it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec
import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Part, Spelled
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import Unit, UnitGraph, values_of
from amp_rewrite.colouring.pins import decisive_claims, restricted_units
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.evidence import Authority, Evidence, Reason, in_words
from amp_rewrite.policy.operator_lists import Entry, Kind, OpLists
from amp_rewrite.policy.options import Level, Options, Pins

Findings = Mapping[int, Evidence]
"""The evidence of analyses, by the position of the unit: reasons for float32."""


def classify(
    graph: UnitGraph, findings: Findings, options: Options, proven: Findings = MappingProxyType({})
) -> tuple[Entry, ...]:
    """Classify every unit: its kind, with evidence and authority; `proven` units need no denial.

    Raises OptionError for a pin that matches no node, that forces half where no schema allows it, or that
    contradicts another pin.
    """
    list_entry = functools.cache(functools.partial(_list_entry, options, options.operator_lists()))
    entries = [
        list_entry(unit.node.domain, listed_as(unit.node), unit.allowed, unit.runs) for unit in graph.units
    ]
    for index, idiom in graph.spelled.items():
        unit = graph.units[index]
        as_whole = list_entry(*idiom.operator, frozenset((options.half.tensor,)), runs=True)
        as_part = list_entry(*idiom.operator, unit.allowed, unit.runs)
        entries[index] = _as_spelled(entries[index], idiom, as_whole, as_part)
    for index, evidence in proven.items() if options.level is Level.DEFAULT else ():
        if _is_denied_for_range(entries[index]):
            entries[index] = Entry(Kind.INFER, evidence, follow=True)
    for index, evidence in findings.items():
        if options.level is not Level.UNSAFE_FORCE_ALL or evidence.authority.outranks(Authority.FORCE_ALL):
            _hold(entries, index, evidence)
    for unit in graph.units:
        if text := _why_tied(unit, graph.root):
            evidence = Evidence(Authority.SCHEMA, Reason.KEEPS_TYPE, text=text)
            entries[unit.index] = Entry(Kind.FIXED, evidence)
    _pin(graph, entries, options.pins)
    _restrict(graph, entries, options.pins)
    return tuple(entries)


def _is_denied_for_range(entry: Entry) -> bool:
    """Whether the denial is from the shipped list for float16, not from the user."""
    is_from_list = entry.authority is Authority.LIST and entry.evidence.subject == DEFAULT
    return is_from_list and entry.kind is Kind.DENY


DEFAULT = "default"
"""The shipped list for float16, which denies operators that overflow."""


def _as_spelled(own: Entry, idiom: Spelled, whole: Entry, part: Entry) -> Entry:
    """Return the entry of a part of an idiom: its own if the user overrides that, or forces everything.

    `own` is the entry of its own operator, `whole` that of the operator that is written out, and `part` the
    same for a unit with these types and kernels.
    """
    if own.authority in _ASKED_FOR:
        return own
    if idiom.part is Part.OUTER or idiom.has_one_type:
        return own if part.evidence.reason is Reason.NOT_LISTED else part
    evidence = Evidence(Authority.IDIOM, Reason.WRITTEN_OUT, subject=idiom.operator[1])
    if idiom.part is Part.INNER:
        return Entry(Kind.FIXED, evidence)
    return Entry(Kind.FIXED, evidence, whole.follow, stands_as=whole.kind)


_ASKED_FOR = frozenset((Authority.OVERRIDE, Authority.FORCE_ALL))


def _list_entry(
    options: Options, lists: OpLists, domain: str, op_type: str, allowed: frozenset[str], runs: bool
) -> Entry:
    """Return the entry of an operator's variable by the schema, the target, the level and the lists."""
    half = options.half
    if options.storage_only:
        return _STORAGE_ONLY
    if not allowed:
        return Entry(Kind.FIXED, Evidence(Authority.SCHEMA, Reason.UNKNOWN_OPERATOR, half=half.name))
    if (domain, op_type) == ("", "Cast"):
        return Entry(Kind.FIXED, Evidence(Authority.LIST, Reason.CAST, subject=lists.name))
    entry = _entry(lists, domain, op_type)
    if entry is None:
        entry = Entry(Kind.FIXED, Evidence(Authority.LIST, Reason.NOT_LISTED, subject=lists.name))
    if not any(half.tensor in kind for kind in allowed):
        return _fixed(entry, Evidence(Authority.SCHEMA, Reason.NO_HALF_TYPE, half=half.name))
    if not runs and Authority.TARGET.outranks(entry.authority):
        entry = _fixed(entry, _no_kernel(options))
    return _at_level(entry, op_type, options.level)


def _no_kernel(options: Options) -> Evidence:
    """Return the evidence that the target has no half kernel. At `unsafe-force-all`, onnxruntime runs such a
    float16 node in float32, and rejects a bfloat16 one: its CPU provider has few kernels, and inserts no
    Casts. A strict target rejects both.
    """
    target, half = options.target, options.half
    is_rejected = target.is_strict or (target.is_onnxruntime and half is BFLOAT16)
    if options.level is Level.UNSAFE_FORCE_ALL and is_rejected:
        subject = "onnxruntime" if target.is_onnxruntime else target.name
        return Evidence(Authority.RUNTIME_BUG, Reason.NO_KERNEL, subject=subject, half=half.name)
    return Evidence(Authority.TARGET, Reason.NO_KERNEL, subject=target.name, half=half.name)


_STORAGE_ONLY = Entry(
    Kind.FIXED, Evidence(Authority.LEVEL, Reason.LEVEL, text="only weights are to be half, and no arithmetic")
)
SQUARE = "Mul(x,x)"
"""The name in lists of a Mul of a value with itself, which overflows like Pow."""


def listed_as(node: ir.Node) -> str:
    """Return the name of a node in lists and overrides: that of its operator, or of a square."""
    square = node.op_type == "Mul" and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    return SQUARE if square and not node.domain else node.op_type


def _entry(lists: OpLists, domain: str, name: str) -> Entry | None:
    """Return the entry in the lists; an override of Mul covers squares too."""
    if name != SQUARE:
        return lists.find(domain, name)
    plain = lists.find(domain, "Mul")
    is_override = plain is not None and plain.authority is Authority.OVERRIDE
    return plain if is_override else lists.find(domain, SQUARE) or plain


def _at_level(entry: Entry, op_type: str, level: Level) -> Entry:
    """Return the entry of the lists as a level changes it."""
    may_force = op_type not in _CASTS and Authority.FORCE_ALL.outranks(entry.authority)
    match level:
        case Level.TENSOR_CORES_ONLY if entry.kind not in (Kind.ALLOW, Kind.FIXED):
            text = "not on the allow list, and only that is asked for"
            return Entry(Kind.FIXED, Evidence(Authority.LEVEL, Reason.LEVEL, text=text))
        case Level.TREAT_INFER_AS_DENY if entry.kind is Kind.INFER:
            text = f"infer is treated as deny ({in_words(entry.evidence)})"
            changes = {"authority": Authority.LEVEL, "reason": Reason.LEVEL, "text": text}
            return Entry(Kind.DENY, msgspec.structs.replace(entry.evidence, **changes))
        case Level.UNSAFE_FORCE_ALL if may_force:
            text = "everything that the types allow is forced"
            return Entry(Kind.ALLOW, Evidence(Authority.FORCE_ALL, Reason.LEVEL, text=text))
        case _:
            return entry


_CASTS = having(Trait.CASTS) | {"BitCast"}


def _fixed(entry: Entry, evidence: Evidence) -> Entry:
    """Return the entry of a unit pinned to float32. DENY stays DENY: its consumers remain suspect."""
    return Entry(Kind.DENY if entry.taken_as is Kind.DENY else Kind.FIXED, evidence)


def pin_entry(entry: Entry, evidence: Evidence) -> Entry:
    """Return the entry of a unit that a pin or finding keeps in float32, with its former kind for `deny`."""
    return replace(_fixed(entry, evidence), unheld=entry.unheld or entry.taken_as)


def _hold(entries: list[Entry], unit: int, evidence: Evidence) -> None:
    """Keep a unit in float32, unless a higher authority has decided.

    Findings on ranges do not concern the inside of an idiom, which is float32 anyway.
    """
    own = entries[unit].authority
    of_numbers = Authority.RUNTIME_BUG.outranks(evidence.authority)
    if evidence.authority.outranks(own) and not (own is Authority.IDIOM and of_numbers):
        entries[unit] = pin_entry(entries[unit], evidence)


def _why_tied(unit: Unit, root: ir.Graph) -> str:
    """Return why the node itself ties this unit to float32; nothing if it does not."""
    typed = schema.of(unit.node)
    if typed is not None and typed.var == unit.var.name and not typed.settable:
        return f"the attribute {typed.attribute} sets this type, and means more than a type"
    if unit.dense:
        return ""
    if unit.node.op_type == "Optional" and "type" in unit.node.attributes:
        return "the attribute type spells the element type out"
    if any(value in root.outputs or value in root.inputs for value in values_of(unit)):
        return "a sequence or optional that is an input or output of the model keeps its type"
    return ""


def _pin(graph: UnitGraph, entries: list[Entry], pins: Pins) -> None:
    """Apply the pins to the nodes that they name, and to all nodes in their bodies."""
    free = [unit for unit, entry in enumerate(entries) if Authority.PIN.outranks(entry.authority)]
    for unit, claim in decisive_claims(graph, pins, entries, free).items():
        is_forced = claim.by == "force_half"
        text = "forced" if is_forced else "kept"
        evidence = Evidence(Authority.PIN, Reason.PINNED, subject=claim.pattern, text=text)
        if is_forced:
            entries[unit] = Entry(Kind.ALLOW, evidence)
        else:
            _hold(entries, unit, evidence)


def _restrict(graph: UnitGraph, entries: list[Entry], pins: Pins) -> None:
    """Allow what the pins name alone, as far as nothing denies it, and hold all else but what lies between
    such units; without effect if they name nothing alone.
    """
    if not pins.restriction:
        return
    restricted = restricted_units(graph, pins)
    for unit, pattern in restricted.items():
        if entries[unit].kind in _OPEN or entries[unit].kind is Kind.ALLOW:
            evidence = Evidence(Authority.OVERRIDE, Reason.PINNED, subject=pattern, text="named")
            entries[unit] = Entry(Kind.ALLOW, evidence)
    forced = (unit for unit, entry in enumerate(entries) if entry.authority is Authority.PIN)
    ends = [unit for unit in (*restricted, *forced) if entries[unit].kind is Kind.ALLOW]

    def is_open(unit: int) -> bool:
        return entries[unit].kind in _OPEN

    after = reach(ends, graph.successors.__getitem__, is_open)
    between = reach(ends, graph.predecessors.__getitem__, after.__contains__)
    evidence = Evidence(Authority.PIN, Reason.PINNED, subject=pins.restriction, text="not named")
    for unit in range(len(entries)):
        if unit not in restricted and unit not in between:
            _hold(entries, unit, evidence)


_OPEN = (Kind.INFER, Kind.CLEAR)
"""The kinds of units that are half between half units."""
