"""Where a plan rounds, and the sites by which a search knows it.

A value is rounded for a reader where its producer or that reader is half: a place each. What only moves
values, or is monotonic on them, rounds nothing of its own, so a site is a value that no such node makes, with
all places behind it up to the next values that are made: what they add to the error is one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.operators import effective_op
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.running.emulation import KEEP_ROUNDED


class Place(NamedTuple):
    """Readers of a value that read it rounded where any of `units` is half: units, or None for what belongs
    to none, as the outputs of the model.
    """

    value: ir.Value
    units: tuple[int, ...]
    readers: tuple[int | None, ...]


class Site(NamedTuple):
    """A value, the units of which any in half has it rounded for a reader, and its places by position."""

    value: ir.Value
    units: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rounding:
    """All places and sites of a painting, for it and for those that have less in half."""

    places: tuple[Place, ...]
    sites: tuple[Site, ...]

    def rounded(self, painting: Painting) -> list[int]:
        """The positions of the places that a painting rounds."""
        return [at for at, place in enumerate(self.places) if any(map(painting.is_half, place.units))]


def find(graph: UnitGraph, painting: Painting) -> Rounding:
    """The places and sites of a painting, in the order of the nodes; sequences and optionals have none."""
    finder = _Finder(graph, painting)
    return Rounding(tuple(finder.places), tuple(finder.sites()))


class _Finder:
    def __init__(self, graph: UnitGraph, painting: Painting) -> None:
        self._graph, self._painting = graph, painting
        self._carriers = [_carries(graph, unit) for unit in range(len(graph.units))]
        values = (v for v in dict.fromkeys((*graph.uses, *graph.producer)) if _is_tensor(graph, v))
        self._values = tuple(values)
        self.places = [place for value in self._values for place in self._places(value)]

    def _places(self, value: ir.Value) -> Iterator[Place]:
        """What rounds a value: its producer, but a carrier makes what it was given, and each reader."""
        producer = self._origin(value)
        readers: dict[tuple[int, ...], dict[int | None, None]] = {}
        for reader in (None, *(unit for unit, _ in self._graph.uses.get(value, ()))):
            units = (unit for unit in (producer, reader) if unit is not None)
            halves = tuple(dict.fromkeys(filter(self._painting.is_half, units)))
            readers.setdefault(halves, {})[reader] = None
        yield from (Place(value, units, tuple(found)) for units, found in readers.items() if units)

    def _origin(self, value: ir.Value) -> int | None:
        producer = self._graph.producer.get(value)
        return None if producer is None or self._carriers[producer] else producer

    def sites(self) -> Iterator[Site]:
        """A place behind several values belongs to the first of them."""
        made: dict[ir.Value, list[int]] = {}
        for at, place in enumerate(self.places):
            made.setdefault(place.value, []).append(at)
        origins = (value for value in self._values if not self._is_carried(value))
        touching = sorted(((value, self._touching(value)) for value in origins), key=_first_unit)
        for value, units in touching:
            behind = (v for unit in units if self._carriers[unit] for v in self._graph.units[unit].defs)
            places = [at for each in (value, *behind) for at in made.pop(each, ())]
            if places:
                yield Site(value, units, tuple(places))

    def _is_carried(self, value: ir.Value) -> bool:
        producer = self._graph.producer.get(value)
        return producer is not None and self._carriers[producer]

    def _touching(self, value: ir.Value) -> tuple[int, ...]:
        """The producer of a value, and all that reads it or what carriers make of it."""
        graph, carriers = self._graph, self._carriers
        readers = dict.fromkeys(unit for unit, _ in graph.uses.get(value, ()))
        behind = reach(
            [unit for unit in readers if carriers[unit]],
            lambda unit: graph.successors[unit] if carriers[unit] else (),
            lambda unit: graph.units[unit].dense,
        )
        producer = graph.producer.get(value)
        return tuple(dict.fromkeys((*([] if producer is None else [producer]), *readers, *behind)))


def _first_unit(found: tuple[ir.Value, tuple[int, ...]]) -> int:
    return min(found[1])


def _is_tensor(graph: UnitGraph, value: ir.Value) -> bool:
    return isinstance(graph.types.get(value), ir.TensorType)


def _carries(graph: UnitGraph, unit: int) -> bool:
    """Whether what a unit makes is rounded as what it reads is."""
    node, has_inputs = graph.units[unit].node, bool(graph.units[unit].uses)
    moves = control_flow.may_have_bodies(node) or (effective_op(node) in KEEP_ROUNDED and not node.domain)
    return has_inputs and moves
