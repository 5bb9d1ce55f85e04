"""The predicted time of a model for any colours of its units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs.borders import Border
from amp_rewrite.costs.model_costs import FEMTO, ModelCosts, Scale


@dataclass(frozen=True, slots=True)
class RunTime:
    """The predicted time of one run in seconds, its launches, and how many of these are Casts."""

    seconds: float
    launches: int
    casts: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times of a run on a device, predicted and not measured: in float32, as decided, and all in half.

    `sizes` are those of the first input, as they count. `everything` is what the types alone would allow,
    with kernels that may not exist. `fast_half` says whether the device is faster in half than in float32.
    """

    device: str
    half: str
    sizes: str
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


def run_time(costs: ModelCosts, borders: Iterable[Border], halves: Sequence[bool], scale: Scale) -> RunTime:
    """The time of a run with these units in half; linear in the kernels of the model."""
    total = launches = casts = 0
    for kernel in costs.kernels:
        total += costs.time(kernel, [halves[unit] for unit in kernel.units], scale)
        launches += kernel.runs
    for border in borders:
        if border.is_cast(halves):
            total += costs.cast(border.value, scale)
            casts += 1
    for fusion in costs.fusions:
        apart = halves[fusion.producer] is not halves[fusion.consumer]
        total += costs.broken(fusion, scale) if apart else -costs.launch(fusion)
        launches -= not apart
    return RunTime(total / FEMTO, launches + casts, casts)


def everything(graph: UnitGraph, half: str) -> list[bool]:
    """All units that half may be: what their schemas allow, whatever becomes of the numbers."""
    return [any(f"tensor({half})" in kind for kind in unit.allowed) for unit in graph.units]
