"""Unit graphs made of words, for tests of the rules of colour: no model, no schema, no lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import onnx_ir as ir

from amp_rewrite.colours import Painting
from amp_rewrite.lists import Entry, Kind
from amp_rewrite.schema import TypeVar
from amp_rewrite.units import Site, Unit, UnitGraph

FOLLOW = "FOLLOW"
"""The word for an INFER unit that the lists mark `follow`; every other kind is its own word."""

Edge = tuple[int, int]
"""From the unit that makes a value to one that reads it."""


def entries(words: str) -> tuple[Entry, ...]:
    """An entry for every word: a kind, or FOLLOW."""
    return tuple(map(entry, words.split()))


def entry(word: str, source: str = "test") -> Entry:
    """The entry that a word stands for."""
    kind = Kind.INFER if word == FOLLOW else Kind[word]
    return Entry(kind, "as the test says", word == FOLLOW, source)


def colours(painting: Painting) -> str:
    """The colour of every unit, as words."""
    return " ".join(paint.colour.name for paint in painting.paints)


def rules(painting: Painting) -> str:
    """The rule that painted every unit, as words."""
    return " ".join(paint.rule.value for paint in painting.paints)


def chain(
    length: int,
    *,
    ties: Iterable[Sequence[int]] = (),
    casts: Sequence[int] = (),
    leaving: Sequence[int] = (),
) -> UnitGraph:
    """Units of which each is read by the next."""
    return graph(length, list(pairwise(range(length))), ties=ties, casts=casts, leaving=leaving)


def graph(
    size: int,
    edges: Sequence[Edge],
    *,
    ties: Iterable[Sequence[int]] = (),
    casts: Sequence[int] = (),
    leaving: Sequence[int] = (),
) -> UnitGraph:
    """As many units as `size` says; each makes one value, that of `leaving` are outputs of the model.

    Those of `casts` are a Cast's: its input side when something feeds them, else its output side. A
    Cast's input side makes no float32, so nothing reads it.
    """
    values = [ir.Value(name=f"v{i}") for i in range(size)]
    fed = [[maker for maker, reader in edges if reader == i] for i in range(size)]
    units = tuple(
        _unit(i, [values[maker] for maker in fed[i]], values[i], is_cast=i in casts)
        for i in range(size)
    )
    return UnitGraph(
        units=units,
        maker={value: i for i, unit in enumerate(units) for value in unit.makes},
        readers={
            value: [(i, site) for i, unit in enumerate(units) for site in unit.reads
                    if unit.node.inputs[site.port] is value]
            for value in values
        } if size < _LARGE else {},
        producers=fed,
        consumers=_consumers(size, edges),
        ties=tuple(map(tuple, ties)),
        types={},
        root=ir.Graph([], [values[i] for i in leaving], nodes=[]),
    )


_LARGE = 100
"""From this size on nobody asks a test's graph who reads a value, and finding out takes too long."""
