"""The predicted time of a model for any colours of its units."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs import model_costs
from amp_rewrite.costs.model_costs import AS_GIVEN, FEMTO, ModelCosts, Scale
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.open_sizes import DEFAULT
from amp_rewrite.policy.options import IOTypes, Options

# Where Casts run: at which values, and what they cost, for any colours of the units.


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


@dataclass(frozen=True, slots=True)
class RunTime:
    """The predicted time of one run in seconds, its launches, and how many of these are Casts."""

    seconds: float
    launches: int
    casts: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times of a run on a device, predicted and not measured: in float32, as decided, and all in half.

    `sizes` are those of the first input, as they count, and `open_size` what open ones of them count as; None
    where none is open. `sizes_from` says where sizes of open dimensions were given, empty where none was.
    `everything` is what the types alone would allow, with kernels that may not exist. `fast_half` says
    whether the device is faster in half than in float32.
    """

    device: str
    half: str
    sizes: str
    open_size: int | None
    sizes_from: str
    fast_half: bool
    float32: RunTime
    result: RunTime
    everything: RunTime

    @property
    def speedup(self) -> float:
        """How many times as fast as float32 the result is; 1 where nothing is executed."""
        return _times(self.float32, self.result)

    @property
    def of_everything(self) -> float:
        """How many times as fast as everything in half the result is."""
        return _times(self.everything, self.result)

    @property
    def is_slower(self) -> bool:
        """Whether half gains nothing: no time is saved, or the device has no fast half."""
        return self.speedup <= 1.0 or not self.fast_half

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "predicted": "not measured",
            **asdict(self),
            "speedup": self.speedup,
            "of_everything": self.of_everything,
        }


def _times(slow: RunTime, fast: RunTime) -> float:
    return slow.seconds / fast.seconds if fast.seconds else 1.0


def run_times(
    costs: ModelCosts, borders: Iterable[Border], colours: Iterable[Sequence[bool]], scale: Scale
) -> tuple[RunTime, ...]:
    """The time of a run for each of these colours; linear in the kernels of the model."""
    tallies = tuple(_Tally(halves) for halves in colours)
    _add_kernels(tallies, costs, scale)
    for border in borders:
        for tally in tallies:
            if border.is_cast(tally.halves):
                tally.time += costs.cast(border.value, scale)
                tally.casts += 1
    _add_fusions(tallies, costs, scale)
    return tuple(RunTime(tally.time / FEMTO, tally.launches + tally.casts, tally.casts) for tally in tallies)


@dataclass(slots=True)
class _Tally:
    """What adds up for some colours; `launches` are those of kernels."""

    halves: Sequence[bool]
    time: int = 0
    launches: int = 0
    casts: int = 0


def _add_kernels(tallies: Iterable[_Tally], costs: ModelCosts, scale: Scale) -> None:
    for kernel in costs.kernels:
        known: dict[tuple[bool, ...], int] = {}
        for tally in tallies:
            here = tuple([tally.halves[unit] for unit in kernel.units])
            if here not in known:
                known[here] = costs.time(kernel, here, scale)
            tally.time += known[here]
            tally.launches += kernel.runs


def _add_fusions(tallies: Iterable[_Tally], costs: ModelCosts, scale: Scale) -> None:
    """Takes the second launch from what runs as one; adds the value that is written where it does not."""
    for fusion in costs.fusions:
        for tally in tallies:
            apart = tally.halves[fusion.producer] is not tally.halves[fusion.consumer]
            tally.time += costs.broken(fusion, scale) if apart else -costs.launch(fusion)
            tally.launches -= not apart


def half_where_allowed(graph: UnitGraph, half: Half) -> list[bool]:
    """All units that half may be: what their schemas allow, whatever becomes of the numbers."""
    known: dict[frozenset[str], bool] = {}
    for unit in graph.units:
        if unit.allowed not in known:
            known[unit.allowed] = any(half.tensor in kind for kind in unit.allowed)
    return [known[unit.allowed] for unit in graph.units]


# What a model costs on a device, gathered once for all colours that are tried.


@dataclass(frozen=True, slots=True)
class Prices:
    """The costs of a model's kernels and borders; `origin` says who gave the sizes of open dimensions."""

    graph: UnitGraph
    costs: ModelCosts
    borders: tuple[Border, ...]
    origin: str = ""

    def predict(self, halves: Sequence[bool], scale: Scale = AS_GIVEN) -> Prediction:
        """The predicted times with these units in half, at the model's own sizes or at another scale."""
        costs, half = self.costs, self.costs.half
        none, (sizes, open_size, origin) = [False] * len(halves), self._sizes()
        everything = half_where_allowed(self.graph, half)
        times = run_times(costs, self.borders, (none, halves, everything), scale)
        return Prediction(
            costs.device.name, half.name, sizes, open_size, origin, costs.device.is_fast(half.name), *times
        )

    def _sizes(self) -> tuple[str, int | None, str]:
        """The shape of the first input, empty where there is none; the size of what is open in it, and where
        the sizes of open dimensions were given.
        """
        first = next((value for value in self.graph.root.inputs if value.const_value is None), None)
        shape = self.graph.shape(first)
        is_open = shape is not None and not shape.is_static()
        text = "x".join(map(str, self.costs.sizes.shape(first) or ()))
        return text, DEFAULT if is_open else None, self.origin if self.graph.sized else ""


def measure(graph: UnitGraph, options: Options) -> Prices:
    """The prices of a model that is not edited yet; linear in its nodes, ports and edges."""
    costs = model_costs.measure(graph, options.device, options.half)
    half_io = options.io is IOTypes.HALF
    return Prices(graph, costs, tuple(find(graph, costs, half_io=half_io)), options.dims.origin)
