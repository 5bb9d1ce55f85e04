"""Whether units stay inside the range of half: proven, observed, or unknown; with the numbers."""

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
    """What is known of a unit's values: PROVEN to fit into half whatever the inputs, OBSERVED to fit in runs
    (both with a factor of HEADROOM to spare), or UNKNOWN.
    """

    PROVEN = "proven"
    OBSERVED = "observed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class UnitRange:
    """What is known of a unit, by its largest value: the name of that, and the bound of its magnitude.

    `bound` is what is proven, infinity where nothing is, or what was seen where that is what is known.
    """

    knowledge: Knowledge
    value: str
    bound: float

    def to_json(self) -> dict[str, Any]:
        """The same as plain data; the bound is None where there is none."""
        bound = self.bound if math.isfinite(self.bound) else None
        return {"knowledge": self.knowledge.value, "value": self.value, "bound": bound}


@dataclass(frozen=True, slots=True)
class RangeCounts:
    """How many units are half, and how many of these are proven, observed and unknown to fit into it.

    `inputs` are the ranges that this rests on.
    """

    half_units: int
    proven: int
    observed: int
    unknown: int
    inputs: tuple[InputRange, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same as plain data; JSON has no infinity, and a range may have no end."""
        return asdict(self) | {"inputs": [each.to_json() for each in self.inputs]}


@dataclass(frozen=True, slots=True)
class HalfRanges:
    """What is known of the half units of a model: of each by its position, and in numbers."""

    units: Mapping[int, UnitRange]
    counts: RangeCounts


def find(facts: Facts, units: Iterable[int], proven: Proven, seen: Seen, half: Half) -> HalfRanges:
    """What is known of these units, which are half."""
    judge = _Judge(facts, proven, seen, half)
    found = {unit: judge.unit(facts.graph.units[unit]) for unit in units}
    kinds = Counter(each.knowledge for each in found.values())
    proved, observed, unknown = (kinds[knowledge] for knowledge in Knowledge)
    return HalfRanges(found, RangeCounts(len(found), proved, observed, unknown, proven.inputs))


class _Judge:
    def __init__(self, facts: Facts, proven: Proven, seen: Seen, half: Half) -> None:
        self._fits, self._masks = facts.ranges.fits, facts.ranges.masks
        self._masking = {unit for units in self._masks.values() for unit in units}
        self._proven, self._seen, self._half = proven, seen, half

    def unit(self, unit: Unit) -> UnitRange:
        """What is known of a unit: what is of the value of which least is, the largest of several."""
        most = self._half.largest / (1.0 if unit.index in self._masking else HEADROOM)
        found = [self._value(value, most) for value in dict.fromkeys(_values(unit))]
        return max(found, key=_concern, default=UnitRange(Knowledge.PROVEN, "", 0.0))

    def _value(self, value: ir.Value, most: float) -> UnitRange:
        name, bound = value.name or "", self._bound(value)
        if bound <= most:
            return UnitRange(Knowledge.PROVEN, name, bound)
        seen = self._seen.get(name)
        if seen is not None and seen.most <= most:
            return UnitRange(Knowledge.OBSERVED, name, seen.most)
        return UnitRange(Knowledge.UNKNOWN, name, bound)

    def _bound(self, value: ir.Value) -> float:
        """The largest magnitude in what is written: masks are clamped, and other stored values fit or not."""
        if value in self._masks:
            return self._half.fill
        fit = self._fits.get(value)
        return max(-fit.low, fit.high, 0.0) if fit is not None else self._proven.of_clamped(value).most


_ORDER = list(Knowledge)


def _concern(found: UnitRange) -> tuple[int, float]:
    return _ORDER.index(found.knowledge), found.bound


def _values(unit: Unit) -> Iterator[ir.Value]:
    yield from unit.defs
    yield from (value for use in unit.uses if (value := value_of(use)) is not None)
