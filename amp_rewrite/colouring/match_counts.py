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
    """Yield a warning of lists for another half type, and, where nothing is half, one of a list that extends
    no other and lacks operators of the model.
    """
    lists, half = options.operator_lists(), options.half.name
    if lists.half not in ("", half):
        warning = f"the list {lists.name} is for {lists.half}, and {half} has another range and precision"
        yield f"{warning}; give `Options.half` {lists.half}, or `Options.lists` {SHIPPED_FOR[half]}"
    present = set(_operators(graph)) if lists.stands_alone and not any(painting.halves) else set[str]()
    unlisted = present - {schema.written(*operator) for operator in lists.entries}
    if unlisted:
        count = f"{len(unlisted):,} of the model's {len(present):,} operators"
        warning = f"the list {lists.name} does not name {count}, which stay float32"
        yield f"{warning}; it extends no other: add extends: default"


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
