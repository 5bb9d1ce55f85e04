"""Where Casts run: at which values, and what they cost, for any colours of the units."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs.model_costs import ModelCosts


class Made(enum.Enum):
    """In which type a value enters that no unit makes."""

    FULL = "full"
    HALF = "half"


@dataclass(frozen=True, slots=True)
class Border:
    """A value that may be cast: the unit that makes it, or in which type it enters; and who reads it.

    `readers` are units, each once. `full` and `half` say whether something reads it in that type whatever the
    colours: an output of the model, a Cast.
    """

    value: ir.Value
    producer: int | None
    made: Made
    readers: tuple[int, ...]
    full: bool = False
    half: bool = False

    def is_cast(self, halves: Sequence[bool]) -> bool:
        """Whether a Cast of the value runs where the units have these colours."""
        is_half = self.made is Made.HALF if self.producer is None else halves[self.producer]
        if is_half:
            return self.full or not all(halves[unit] for unit in self.readers)
        return self.half or any(halves[unit] for unit in self.readers)


def find(graph: UnitGraph, costs: ModelCosts, *, half_io: bool) -> Iterator[Border]:
    """All values between which and their readers a Cast may run, in the order of the model.

    `half_io` says whether inputs and outputs of the model become half. Casts of the model are no readers and
    no producers: one from half makes its value HALF, and one to half reads it so.
    """
    finder = _Finder(graph, costs, half_io=half_io)
    leaving = [value for value in graph.root.outputs if value in graph.producer]
    for value in dict.fromkeys((*graph.uses, *leaving)):
        if value in costs.vary and graph.producer.get(value) not in costs.inside:
            yield finder.border(value)


class _Finder:
    def __init__(self, graph: UnitGraph, costs: ModelCosts, *, half_io: bool) -> None:
        self._graph, self._half = graph, costs.half.dtype
        self._half_io, self._inside = half_io, costs.inside
        self._entering = frozenset(graph.root.inputs)
        self._leaving = frozenset(graph.root.outputs)
        self._casts = frozenset(
            unit
            for unit in graph.by_operator.get("Cast", ())
            if not graph.units[unit].node.domain and graph.units[unit].node.inputs
        )

    def border(self, value: ir.Value) -> Border:
        producer = self._graph.producer.get(value)
        uses = self._graph.uses.get(value, ())
        readers = dict.fromkeys([unit for unit, _ in uses if unit not in self._inside])
        made = Made.HALF if self._half_io and value in self._entering else Made.FULL
        if producer in self._casts and self._reads_half(producer):
            producer, made = None, Made.HALF
        casts = [unit for unit in readers if unit in self._casts] if self._casts else []
        leaves = value in self._leaving
        return Border(
            value,
            producer,
            made,
            tuple([unit for unit in readers if unit not in self._casts]),
            full=leaves and not self._half_io,
            half=(leaves and self._half_io) or any(map(self._makes_half, casts)),
        )

    def _reads_half(self, unit: int | None) -> bool:
        return unit is not None and self._is_half(self._graph.units[unit].node.inputs[0])

    def _makes_half(self, unit: int) -> bool:
        return self._is_half(self._graph.units[unit].node.outputs[0])

    def _is_half(self, value: ir.Value | None) -> bool:
        kind = self._graph.types.get(value) if value is not None else None
        return kind is not None and kind.dtype == self._half
