"""Values observed in a run of the float32 model, and those outside the range of half."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.ranges import Ranges
from amp_rewrite.analysis.units import Unit, UnitGraph, value_of
from amp_rewrite.errors import OptionError
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

HEADROOM = 2.0
"""The factor, one binade, by which other inputs may exceed the largest observed magnitude."""


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """The `least` nonzero and the `most` finite magnitude of a value's elements."""

    least: float
    most: float

    def join(self, other: Magnitudes) -> Magnitudes:
        """The magnitudes of both together."""
        return Magnitudes(min(self.least, other.least), max(self.most, other.most))

    def is_beyond(self, half: Half) -> bool:
        """Whether the largest magnitude, with HEADROOM, exceeds the largest number of half."""
        return self.most * HEADROOM > half.largest


Observed = Mapping[str, Magnitudes]
"""The observed magnitudes of the values of a model, by name."""


def magnitudes(array: NDArray[Any]) -> Magnitudes | None:
    """The magnitudes of an array of floats; None if no element is finite and nonzero."""
    sizes = np.abs(array[np.isfinite(array) & (array != 0)])
    return Magnitudes(float(sizes.min()), float(sizes.max())) if sizes.size else None


def refuse_foreign(graph: ir.Graph, observed: Observed) -> None:
    """Raises OptionError for observations of another model, which would silently have no effect."""
    made = (value for node in graph for value in node.outputs)
    if observed and all(value.name not in observed for value in (*graph.inputs, *made)):
        raise OptionError(
            "holds no value of this model", where="seen", remedy="observe the model that is rewritten"
        )


def check(graph: UnitGraph, observed: Observed, found: Ranges, half: Half) -> dict[int, Evidence]:
    """The units that read or produce values outside the range of half, except masks before a softmax."""
    if not observed:
        return {}
    masking = {unit for units in found.masks.values() for unit in units}
    return {
        unit.index: evidence
        for unit in graph.units
        if unit.index not in masking and (evidence := _evidence(unit, observed, half)) is not None
    }


def _evidence(unit: Unit, observed: Observed, half: Half) -> Evidence | None:
    beyond = ((name, observed[name]) for name in _names(unit) if name in observed)
    name, seen = max(beyond, key=lambda pair: pair[1].most, default=("", None))
    if seen is None or not seen.is_beyond(half):
        return None
    reason = Reason.OBSERVED_OVERFLOW
    return Evidence(Authority.OBSERVATION, reason, name, seen.most, half.largest, half.name)


def _names(unit: Unit) -> Iterator[str]:
    for value in (*unit.defs, *map(value_of, unit.uses)):
        if value is not None and value.name:
            yield value.name
