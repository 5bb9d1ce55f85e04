"""Why a unit has its colour, in sentences; and the numbers of a report, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rewrite import schema
from amp_rewrite.colours import Colour, Painting, Rule
from amp_rewrite.lists import Kind
from amp_rewrite.reporting.report import Report
from amp_rewrite.units import Unit, UnitGraph


@dataclass(frozen=True, slots=True)
class Step:
    """One link in a chain of causes: a unit, what it became, and why."""

    unit: str
    colour: Colour
    rule: Rule
    kind: Kind
    reason: str


def chain(graph: UnitGraph, painting: Painting, unit: int) -> tuple[Step, ...]:
    """Why a unit has its colour, step by step, down to where it all began."""
    return tuple(first_step(graph, painting, link) for link in painting.why(unit))


def first_step(graph: UnitGraph, painting: Painting, index: int) -> Step:
    """Why a unit has its colour, as far as the unit that caused it."""
    unit, paint, entry = graph.units[index], painting.paints[index], painting.entries[index]
    cause = label(graph.units[paint.cause]) if paint.cause is not None else ""
    return Step(
        unit=label(unit),
        colour=paint.colour,
        rule=paint.rule,
        kind=entry.kind,
        reason=_because(paint.rule, paint.colour, entry.kind, cause).format(
            why=entry.reason, who=entry.source
        ),
    )


def label(unit: Unit) -> str:
    """A unit as a reader finds it: operator, node (or what it makes, if it has no name), variable."""
    made = next((value.name for value in unit.node.outputs if value.name), "")
    name = f"'{unit.node.name}'" if unit.node.name else f"-> '{made}'"
    return f"{schema.written(unit.node.domain, unit.node.op_type)} {name} ({unit.var})"


def _because(rule: Rule, colour: Colour, kind: Kind, cause: str) -> str:
    """The sentence of a rule; `{why}` and `{who}` stand for the entry's reason and source."""
    cause = cause.replace("{", "{{").replace("}", "}}")
    if rule is Rule.SETTLE:
        tied = "tied to" if colour is Colour.FULL else "a Cast takes the type beside it:"
        return f"{tied} {cause}"
    if rule is Rule.LEFT:
        return _LEFT[kind]
    if rule is Rule.DENY and cause:
        return f"downstream of {cause}, which is denied or suspect itself"
    return _SENTENCES[rule] + cause


_SENTENCES = {
    Rule.ALLOW: "allowed: {why} ({who})",
    Rule.DENY: "denied: {why} ({who})",
    Rule.BETWEEN: "safe, and between allowed nodes; on the way to ",
    Rule.FOLLOW: "safe, and goes on in half behind ",
    Rule.SPREAD: "no arithmetic; goes with its neighbour ",
}
_LEFT = {
    Kind.FIXED: "stays float32: {why} ({who})",
    Kind.INFER: "safe in half, but not between allowed nodes, and none of them leads here",
    Kind.CLEAR: "no arithmetic, and no neighbour in half to go with",
    Kind.ALLOW: "allowed: {why} ({who})",
    Kind.DENY: "denied: {why} ({who})",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a report says: what it is about, and the words."""

    name: str
    text: str


def summary(report: Report) -> Iterator[Line]:
    """What a rewrite did, a line for each thing that there is to say."""
    nodes = report.nodes
    mixed = f", {nodes.mixed:,} in both" if nodes.mixed else ""
    others = f", {nodes.other:,} without float32" if nodes.other else ""
    yield Line("nodes", f"{nodes.half:,} in {report.half}{mixed}, {nodes.full:,} in float32{others}")
    removed = f", {report.casts_removed:,} removed" if report.casts_removed else ""
    yield Line("Casts", f"{report.casts_added:,} added{removed}")
    yield Line("size", _sizes(report))
    if report.saturated:
        brought = f"{plural(report.saturated, 'stored value')} brought into {report.half}'s range"
        yield Line("masks", brought)
    if report.flushed:
        flushed = f"{plural(report.flushed, 'stored value')} too small for {report.half} became 0"
        yield Line("tiny", flushed)
    if report.observed:
        beyond = f"in float32 for values that a run showed to be too large for {report.half}"
        yield Line("observed", f"{plural(report.observed, 'unit')} {beyond}")
    for warning in report.warnings:
        yield Line("warning", warning)
    for fault in report.broken:
        yield Line("BROKEN", fault)


def _sizes(report: Report) -> str:
    """The size before and after; a rewrite that has not been made has no second one."""
    if not report.size_after:
        return size(report.size_before)
    share = f" ({report.size_after / report.size_before:.0%})" if report.size_before else ""
    return f"{size(report.size_before)} -> {size(report.size_after)}{share}"


def size(count: int) -> str:
    """A number of bytes for people: 512 B, 1.2 kB, 3.4 MB, 5.6 GB (powers of 1000)."""
    if count < 1000:
        return f"{count} B"
    power = min(int(math.log10(count)) // 3, 4)
    return f"{count / 1000**power:.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
