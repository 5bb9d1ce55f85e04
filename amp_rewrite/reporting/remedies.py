"""What a user could say to have a cause of float32 out of the way; each flag was tried on the analysis."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite import colours, findings, kinds, schema
from amp_rewrite.colours import Painting, Rule
from amp_rewrite.kinds import BY_PIN, BY_SCHEMA
from amp_rewrite.lists import ASKED, Entry, Kind
from amp_rewrite.options import Level, Options
from amp_rewrite.reporting.causes import Remedy, RootCause
from amp_rewrite.units import UnitGraph

PINNED = 3
"""Up to so many nodes are named one by one; for more, the flag of their operator is shorter."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Flags, and what they make of the entries of a model."""

    flags: tuple[str, ...]
    entries: tuple[Entry, ...]


def tried(cause: RootCause, graph: UnitGraph, painting: Painting, options: Options) -> Remedy:
    """The mildest flag that brings some of what the cause holds back into half.

    The units are coloured anew for every flag that is tried: linear in the size of the model.
    """
    hopeless = _without_trying(cause)
    if hopeless:
        return Remedy(why=hopeless)
    for trial in _trials(cause, graph, painting, options.level):
        after = colours.paint(graph, trial.entries, follow=options.follow, level=options.level)
        frees = sum(map(after.is_half, cause.held))
        if frees:
            return Remedy(trial.flags, frees)
    return Remedy(why="nothing: what it is tied to stays float32")


def untried(cause: RootCause) -> Remedy:
    """What helps as a rule, where the model is not at hand: what is allowed is half."""
    hopeless = _without_trying(cause)
    operators = [operator for operator in cause.operators if operator != "Cast"]
    if hopeless or not operators:
        return Remedy(why=hopeless or "no list moves a Cast; --force-half does")
    return Remedy(tuple(_flag(Kind.ALLOW, operator) for operator in operators))


def _without_trying(cause: RootCause) -> str:
    """Why no flag would help, where the reason itself says so; else nothing."""
    root = cause.first
    if root.by_hand:
        return 'set "colour" to "half" in the plan'
    alone = root.entry.kind is not Kind.DENY or len(cause.root_places) == len(cause.held)
    if root.entry.source in _HOPELESS and alone:  # else what is downstream might be freed
        return _HOPELESS[root.entry.source]
    if root.entry.source == "--deny":
        return "leave out the --deny that names it"
    if root.paint.rule is not Rule.LEFT or root.entry.source in findings.SOURCES:
        return ""
    if root.operator == "Cast":
        return "nothing to gain: a Cast goes with what is beside it"
    return "nothing to gain: it goes with what is beside it" if root.entry.kind is Kind.CLEAR else ""


_HOPELESS = {
    BY_SCHEMA: "nothing: it can only be float32 here",
    BY_PIN: "leave out the --keep-full that names it",
}


def _trials(cause: RootCause, graph: UnitGraph, painting: Painting, level: Level) -> Iterator[_Trial]:
    """From the mildest: --infer for what a list denies, nodes by name for what a range holds, --allow."""
    entry = cause.first.entry
    nodes = tuple(dict.fromkeys(graph.units[unit].node for unit in cause.roots))
    if entry.kind is Kind.DENY and entry.source not in findings.SOURCES and level is Level.DEFAULT:
        yield _of_operators(nodes, graph, painting, Kind.INFER)
    by_name = _of_nodes(nodes, graph, painting)
    if entry.source in findings.SOURCES and len(nodes) <= PINNED:
        yield by_name
    yield _of_operators(nodes, graph, painting, Kind.ALLOW)
    yield by_name


def _of_nodes(nodes: Sequence[ir.Node], graph: UnitGraph, painting: Painting) -> _Trial:
    """A pin for each node."""
    names = tuple(dict.fromkeys(map(kinds.pinned_as, nodes)))
    forced = Entry(Kind.ALLOW, ASKED, source=BY_PIN)
    entries = (
        forced if kinds.pinned_as(unit.node) in names and before.source != BY_SCHEMA else before
        for unit, before in zip(graph.units, painting.entries, strict=True)
    )
    return _Trial(tuple(f"--force-half {shlex.quote(name)}" for name in names), tuple(entries))


def _of_operators(nodes: Sequence[ir.Node], graph: UnitGraph, painting: Painting, kind: Kind) -> _Trial:
    """A flag for the operator of each node; it holds for all of that operator. No list moves a Cast."""
    operators = tuple(operator for operator in dict.fromkeys(map(_operator, nodes)) if operator != "Cast")
    asked = Entry(kind, ASKED, source=f"--{kind.value}")
    entries = (
        _asked(before, asked) if operator in operators else before
        for operator, before in zip(
            (_operator(unit.node) for unit in graph.units), painting.entries, strict=True
        )
    )
    return _Trial(tuple(_flag(kind, operator) for operator in operators), tuple(entries))


def _operator(node: ir.Node) -> str:
    return schema.written(node.domain, kinds.listed_as(node))


def _flag(kind: Kind, operator: str) -> str:
    return f"--{kind.value} {shlex.quote(operator)}"


def _asked(before: Entry, asked: Entry) -> Entry:
    """What becomes of an entry when its operator moves to another list: schema and pins outrank that."""
    if before.source == BY_SCHEMA:
        return replace(before, kind=Kind.FIXED)
    return before if before.source == BY_PIN else asked
