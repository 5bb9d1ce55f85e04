"""The predicted time of a model for any colours of its units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs.borders import Border
from amp_rewrite.costs.model_costs import FEMTO, ModelCosts, Scale
from amp_rewrite.numerics.half import Half


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


def everything(graph: UnitGraph, half: Half) -> list[bool]:
    """All units that half may be: what their schemas allow, whatever becomes of the numbers."""
    known: dict[frozenset[str], bool] = {}
    for unit in graph.units:
        if unit.allowed not in known:
            known[unit.allowed] = any(half.tensor in kind for kind in unit.allowed)
    return [known[unit.allowed] for unit in graph.units]
