"""Switches in a float32 model: an additional Boolean vector input selects, for some values, whether consumers
read them exact or rounded. Bodies read the vector from the outer scope.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph, Use
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.operators.catalogue import EXACT
from amp_rewrite.rewriting.instrument import Instrument, Switches, instrument
from amp_rewrite.running.emulation import SwitchedModel

# Rounding places of a plan, and the sites of a search.
#
# A place is an edge from producer to consumer that rounds the value, as one of the two is half. Nodes that
# only move values, or are monotonic on them, do not round, so a site is a value with another producer,
# with all places behind it up to the next such values: their contribution to the error is one number.


class RoundingPlace(NamedTuple):
    """Consumers of a value that read it rounded if any of `units` is half: units, or None for uses outside
    units, such as the outputs of the model.
    """

    value: ir.Value
    units: tuple[int, ...]
    readers: tuple[int | None, ...]


class Site(NamedTuple):
    """A value, the units any of which in half rounds it for a consumer, and the indices of its places."""

    value: ir.Value
    units: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rounding:
    """All places and sites of a painting, also for paintings with fewer half units."""

    places: tuple[RoundingPlace, ...]
    sites: tuple[Site, ...]

    def rounded(self, painting: Painting) -> list[int]:
        """Return the indices of the places that a painting rounds."""
        return [at for at, place in enumerate(self.places) if any(map(painting.is_half, place.units))]


def find(graph: UnitGraph, painting: Painting) -> Rounding:
    """Return the places and sites of a painting, in node order; sequences and optionals have none."""
    finder = _SiteFinder(graph, painting)
    return Rounding(tuple(finder.places), tuple(finder.sites()))


class _SiteFinder:
    def __init__(self, graph: UnitGraph, painting: Painting) -> None:
        self._graph, self._painting = graph, painting
        self._carriers = [_carries(graph, unit) for unit in range(len(graph.units))]
        values = dict.fromkeys((*graph.uses, *graph.producer))
        self._values = [value for value in values if isinstance(graph.types.get(value), ir.TensorType)]
        self.places = [place for value in self._values for place in self._places(value)]

    def _places(self, value: ir.Value) -> Iterator[RoundingPlace]:
        """Yield the places of a value, which its producer, unless a carrier, or a consumer may round."""
        origin = None if self._is_carried(value) else self._graph.producer.get(value)
        readers: dict[tuple[int, ...], dict[int | None, None]] = {}
        for reader in (None, *(unit for unit, _ in self._graph.uses.get(value, ()))):
            units = (unit for unit in (origin, reader) if unit is not None)
            halves = tuple(dict.fromkeys(filter(self._painting.is_half, units)))
            readers.setdefault(halves, {})[reader] = None
        yield from (
            RoundingPlace(value, units, tuple(consumers)) for units, consumers in readers.items() if units
        )

    def _is_carried(self, value: ir.Value) -> bool:
        producer = self._graph.producer.get(value)
        return producer is not None and self._carriers[producer]

    def sites(self) -> Iterator[Site]:
        """Yield the sites; a place behind several values belongs to the first of them."""
        by_value: defaultdict[ir.Value, list[int]] = defaultdict(list)
        for at, place in enumerate(self.places):
            by_value[place.value].append(at)
        origins = ((value, self._touching(value)) for value in self._values if not self._is_carried(value))
        for value, units in sorted(origins, key=lambda origin: min(origin[1])):
            behind = (v for unit in units if self._carriers[unit] for v in self._graph.units[unit].defs)
            places = [at for each in (value, *behind) for at in by_value.pop(each, ())]
            if places:
                yield Site(value, units, tuple(places))

    def _touching(self, value: ir.Value) -> tuple[int, ...]:
        """Return the producer of a value, and its consumers, directly or behind carriers."""
        graph, carriers = self._graph, self._carriers
        readers = dict.fromkeys(unit for unit, _ in graph.uses.get(value, ()))
        behind = reach(
            [unit for unit in readers if carriers[unit]],
            lambda unit: graph.successors[unit] if carriers[unit] else (),
            lambda unit: graph.units[unit].dense,
        )
        producer = graph.producer.get(value)
        return tuple(dict.fromkeys((*([] if producer is None else [producer]), *readers, *behind)))


def _carries(graph: UnitGraph, unit: int) -> bool:
    """Return whether the outputs of a unit are rounded if its inputs are."""
    node, has_inputs = graph.units[unit].node, bool(graph.units[unit].uses)
    moves = control_flow.may_have_bodies(node) or (effective_op(node) in EXACT and not node.domain)
    return has_inputs and moves


# A float32 model with a switch for every place: one session emulates any choice of half units.
#
# While a switch is on, the readers of its place read the value rounded to half, as in the emulation
# (running.emulation).


def switched(analysis: Analysis, places: Sequence[RoundingPlace]) -> SwitchedModel:
    """Edit the model of an analysis in place: add a switch for each of its places, in order."""
    half = analysis.options.half
    limits = (("Max", -half.largest), ("Min", half.largest)), (("Max", half.smallest),)
    clamped = {
        change.stored.value: limits[change.lifts]
        for change in analysis.plan.tensors
        if change.saturates or change.lifts
    }
    with instrument(analysis.loaded.model, analysis.graph.types) as points:
        switches = Switches(points, analysis.graph.root)
        for value, group in itertools.groupby(places, lambda place: place.value):
            uses = _by_reader(analysis, points, value)
            rounded = points.behind(value, _rounding(points, value, half.dtype, clamped.get(value, ())))
            for place in group:
                readers = [use for reader in place.readers for use in uses[reader]]
                points.read(readers, value, switches.choose(rounded, value))
    return SwitchedModel(analysis.loaded, switches.name, tuple(place.value for place in places))


def _by_reader(analysis: Analysis, points: Instrument, value: ir.Value) -> dict[int | None, list[Use]]:
    """Group the uses of a value by unit, with None for uses outside units."""
    units = {use: unit for unit, use in analysis.graph.uses.get(value, ())}
    uses: defaultdict[int | None, list[Use]] = defaultdict(list)
    for use in points.uses(value):
        uses[units.get(use)].append(use)
    return uses


Limits = Sequence[tuple[str, float]]
"""Operators that bound a value, each with its bound."""


def _rounding(points: Instrument, value: ir.Value, half: ir.DataType, limits: Limits) -> list[ir.Node]:
    """Return nodes that cast a value to half and back; what the plan saturates or lifts is clamped before."""
    nodes: list[ir.Node] = []
    read = value
    for operator, bound in limits:
        nodes.append(points.node(operator, (read, points.stored(np.array(bound, np.float32))), value))
        read = nodes[-1].outputs[0]
    for dtype in (half, ir.DataType.FLOAT):
        nodes.append(points.node("Cast", (read,), value, to=int(dtype)))
        read = nodes[-1].outputs[0]
    return nodes
