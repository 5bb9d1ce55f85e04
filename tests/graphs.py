"""Unit graphs made of words, for tests of the rules of colour: no model, no schema, no lists."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import onnx_ir as ir

from amp_rewrite.analysis.units import Unit, UnitGraph, Use
from amp_rewrite.colouring import classification
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.onnx_types.schema import TypeVar
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import Entry, Kind
from amp_rewrite.rewriting.decisions import Decision, Decisions

FOLLOW = "FOLLOW"
"""The word for an INFER unit that the lists mark `follow`; every kind is a word of its own."""

Edge = tuple[int, int]
"""From the unit that makes a value to one that reads it."""


def entry(word: str, authority: Authority = Authority.LIST) -> Entry:
    """The entry that a word stands for: a kind, or FOLLOW; in small letters, one that is held in float32."""
    kind = Kind.INFER if word.upper() == FOLLOW else Kind[word.upper()]
    evidence = Evidence(authority, Reason.LISTED, text="as the test says")
    found = Entry(kind, evidence, word == FOLLOW)
    return found if word.isupper() else classification.pin_entry(found, evidence)


def entries(words: str) -> tuple[Entry, ...]:
    """An entry for every word of a line."""
    return tuple(map(entry, words.split()))


def colours(painting: Painting) -> str:
    """The colour of every unit, as a line of words."""
    return " ".join(paint.colour.name for paint in painting.paints)


def rules(painting: Painting) -> str:
    """The rule that painted every unit, as a line of words."""
    return " ".join(paint.rule.value for paint in painting.paints)


def why(painting: Painting, unit: int) -> tuple[int, ...]:
    """The chain of causes from a unit to its root."""
    painted = zip(painting.paints, painting.entries, strict=True)
    return Decisions(
        tuple(
            Decision(
                operator="",
                variable="",
                precision=paint.colour,
                rule=paint.rule,
                kind=entry.kind,
                evidence=entry.evidence,
                cause=paint.cause,
            )
            for paint, entry in painted
        )
    ).why(unit)


@functools.cache
def chain(length: int, ties: tuple[tuple[int, ...], ...] = ()) -> UnitGraph:
    """Units of which each is read by the next."""
    return graph(length, pairwise(range(length)), ties)


def graph(
    size: int,
    edges: Iterable[Edge],
    ties: Iterable[Sequence[int]] = (),
    *,
    casts: Sequence[int] = (),
    leaving: Sequence[int] = (),
) -> UnitGraph:
    """`size` units that make one value each; those of `leaving` are outputs of the model.

    A unit of `casts` is one side of a Cast: its input side if anything feeds it, and then it makes
    nothing, else its output side.
    """
    values = [ir.Value(name=f"v{i}") for i in range(size)]
    producers: list[list[int]] = [[] for _ in values]
    consumers: list[list[int]] = [[] for _ in values]
    for maker, reader in dict.fromkeys(edges):
        producers[reader].append(maker)
        consumers[maker].append(reader)
    units = tuple(_unit(i, producers[i], values, casts) for i in range(size))
    root = ir.Graph([], [values[i] for i in leaving], nodes=[])
    return UnitGraph(
        units=units,
        producer={value: unit.index for unit in units for value in unit.defs},
        uses=_readers(units),
        predecessors=producers,
        successors=consumers,
        ties=tuple(map(tuple, ties)),
        by_operator=_by_operator(units),
        types={},
        root=root,
        nodes={root: ()},
    )


def with_edges(
    found: UnitGraph, producers: Sequence[Sequence[int]], consumers: Sequence[Sequence[int]]
) -> UnitGraph:
    """The same graph, with these neighbours."""
    return replace(found, predecessors=producers, successors=consumers)


def _unit(index: int, makers: Sequence[int], values: Sequence[ir.Value], casts: Sequence[int]) -> Unit:
    reads, made = [values[i] for i in makers], (values[index],)
    is_cast = index in casts
    node = ir.Node("", "Cast" if is_cast else "Stub", reads, outputs=made, name=f"n{index}")
    makes = () if is_cast and makers else made
    sites = tuple(Use(node, port) for port in range(len(reads)))
    return Unit(index, node, TypeVar("T"), sites, makes, frozenset(["tensor(float16)"]))


def _by_operator(units: Iterable[Unit]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for unit in units:
        found.setdefault(unit.node.op_type, []).append(unit.index)
    return found


def _readers(units: Iterable[Unit]) -> dict[ir.Value, list[tuple[int, Use]]]:
    readers: dict[ir.Value, list[tuple[int, Use]]] = {}
    for unit in units:
        for value, site in zip(unit.node.inputs, unit.uses, strict=True):
            assert value is not None
            readers.setdefault(value, []).append((unit.index, site))
    return readers
