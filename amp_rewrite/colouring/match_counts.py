"""Counts of the nodes that match names from the user: pins, and operators that were put on another list."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring import classification
from amp_rewrite.colouring import pins as naming
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.model.traversal import every_node
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.operator_lists import OpLists
from amp_rewrite.policy.options import SHIPPED_FOR, Options, Pins


@dataclass(frozen=True, slots=True)
class Matched:
    """A pattern or an operator, and the number of nodes that it matches.

    `by` is its kind: the field of Pins, or the list on which an operator was put. Without
    a match, `near` are operators of the model with similar names; where no match became half as requested,
    `why` gives the reason and a remedy.
    """

    by: str
    pattern: str
    nodes: int
    near: tuple[str, ...] = ()
    why: str = ""


def find(graph: UnitGraph, lists: OpLists, pins: Pins) -> tuple[Matched, ...]:
    """Count the matches of pins, and of operators that the user put on another list; not of whole lists."""
    return (*_pinned(graph, pins), *_list_matches(graph, lists))


def of_lists(graph: UnitGraph, painting: Painting, options: Options) -> Iterator[str]:
    """Yield warnings of lists that do not suit the half type, or, where nothing is half, the model."""
    lists = options.operator_lists()
    yield from _of_other_half(lists, options.half)
    if not any(painting.halves):
        yield from _unlisted(graph, lists)


def _unlisted(graph: UnitGraph, lists: OpLists) -> tuple[str, ...]:
    """Return a warning of a list that extends no other and lacks operators of the model, else nothing."""
    present = set(_operators(graph)) if lists.stands_alone else set[str]()
    listed_names = {schema.written(*operator) for operator in lists.entries}
    if present <= listed_names:
        return ()
    count = f"{len(present - listed_names):,} of the model's {len(present):,} operators"
    warning = f"the list {lists.name} does not name {count}, which stay float32"
    return (f"{warning}; it extends no other: add extends: default",)


def _of_other_half(lists: OpLists, half: Half) -> tuple[str, ...]:
    """Return a warning of lists for another half type, else nothing."""
    if lists.half in ("", half.name):
        return ()
    warning = f"the list {lists.name} is for {lists.half}, and {half.name} has another range and precision"
    return (f"{warning}; give `Options.half` {lists.half}, or `Options.lists` {SHIPPED_FOR[half.name]}",)


def _pinned(graph: UnitGraph, pins: Pins) -> Iterator[Matched]:
    nodes = naming.with_units(graph, dict(naming.around(graph.root))) if pins != Pins() else {}
    for field in dataclasses.fields(pins):
        names = naming.names_in(nodes, field.name)
        for pattern in getattr(pins, field.name):
            yield Matched(field.name, pattern, len(naming.matching(names, pattern, field.name)))


def _list_matches(graph: UnitGraph, lists: OpLists) -> Iterator[Matched]:
    overrides = {key: entry for key, entry in lists.entries.items() if entry.authority is Authority.OVERRIDE}
    counts = _operators(graph) if overrides else Counter[str]()
    for (domain, name), entry in overrides.items():
        operator = schema.written(domain, name)
        near = () if counts[operator] else difflib.get_close_matches(operator, counts, n=3)
        yield Matched(entry.kind.value, operator, counts[operator], tuple(near))


def _operators(graph: UnitGraph) -> Counter[str]:
    """Count the nodes by their names in lists; a square is a Mul as well."""
    counts = Counter[str]()
    for node in every_node(graph.root):
        names = dict.fromkeys((node.op_type, classification.listed_as(node)))
        counts.update(schema.written(node.domain, name) for name in names)
    return counts
