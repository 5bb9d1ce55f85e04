"""Ranges of half units: proven to fit half, observed to fit it, or unknown; with the numbers."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.observed import HEADROOM, Seen
from amp_rewrite.analysis.units import Unit, value_of
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.given import InputRange
from amp_rewrite.numerics.half import Half


class Knowledge(enum.Enum):
    """The status of a unit's values: PROVEN to fit half for all inputs, OBSERVED to fit it in calibration
    runs (both with a factor of HEADROOM to spare), or UNKNOWN.
    """

    PROVEN = "proven"
    OBSERVED = "observed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class UnitRange:
    """The range of a unit by its most critical value: the name of that, and the bound of its magnitude.

    `bound` is the observed magnitude for OBSERVED, else the proven one, infinity without a proof.
    """

    knowledge: Knowledge
    value: str
    bound: float

    def to_json(self) -> dict[str, Any]:
        """Return the range as plain data; an infinite bound is None."""
        bound = self.bound if math.isfinite(self.bound) else None
        return {"knowledge": self.knowledge.value, "value": self.value, "bound": bound}


@dataclass(frozen=True, slots=True)
class RangeCounts:
    """The number of half units, and of those that are proven or observed to fit half, or unknown.

    `inputs` are the ranges on which the proofs rest.
    """

    half_units: int
    proven: int
    observed: int
    unknown: int
    inputs: tuple[InputRange, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain data; infinite ends of ranges are None, as JSON has no infinity."""
        return asdict(self) | {"inputs": [each.to_json() for each in self.inputs]}


@dataclass(frozen=True, slots=True)
class HalfRanges:
    """The ranges of a model's half units by position, and their counts."""

    units: Mapping[int, UnitRange]
    counts: RangeCounts


def find(facts: Facts, units: Iterable[int], proven: Proven, observations: Seen, half: Half) -> HalfRanges:
    """Return the ranges of these half units."""
    judge = _Judge(facts, proven, observations, half)
    ranges = {unit: judge.unit(facts.graph.units[unit]) for unit in units}
    kinds = Counter(each.knowledge for each in ranges.values())
    proved, observed, unknown = (kinds[knowledge] for knowledge in Knowledge)
    return HalfRanges(ranges, RangeCounts(len(ranges), proved, observed, unknown, proven.inputs))


class _Judge:
    def __init__(self, facts: Facts, proven: Proven, observations: Seen, half: Half) -> None:
        self._fits, self._masks = facts.ranges.fits, facts.ranges.masks.clamped
        self._masking = facts.ranges.masks.units()
        self._proven, self._seen, self._half = proven, observations, half

    def unit(self, unit: Unit) -> UnitRange:
        """Return the range of a unit's most critical value: unknown before observed and proven, then the
        largest.
        """
        most = self._half.largest / (1.0 if unit.index in self._masking else HEADROOM)
        ranges = [self._value(value, most) for value in dict.fromkeys(_values(unit))]
        return max(
            ranges,
            key=lambda each: (_ORDER.index(each.knowledge), each.bound),
            default=UnitRange(Knowledge.PROVEN, "", 0.0),
        )

    def _value(self, value: ir.Value, most: float) -> UnitRange:
        name, bound = value.name or "", self._bound(value)
        if bound <= most:
            return UnitRange(Knowledge.PROVEN, name, bound)
        observation = self._seen.get(name)
        if observation is not None and observation.most <= most:
            return UnitRange(Knowledge.OBSERVED, name, observation.most)
        return UnitRange(Knowledge.UNKNOWN, name, bound)

    def _bound(self, value: ir.Value) -> float:
        """Return the largest magnitude in the rewritten model: masks are clamped, stored values fitted."""
        if value in self._masks:
            return self._half.fill
        fit = self._fits.get(value)
        return max(-fit.low, fit.high, 0.0) if fit is not None else self._proven.of_clamped(value).most


_ORDER = list(Knowledge)


def _values(unit: Unit) -> Iterator[ir.Value]:
    yield from unit.defs
    yield from (value for use in unit.uses if (value := value_of(use)) is not None)
