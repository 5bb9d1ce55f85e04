"""Ranges of half units: proven to fit half, observed to fit it, or unknown; with the numbers."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.observed import HEADROOM, Seen
from amp_rewrite.analysis.units import values_of
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.given import InputRange
from amp_rewrite.numerics.half import Half


class Knowledge(enum.Enum):
    """Whether a unit's values fit half over HEADROOM: PROVEN for all inputs, OBSERVED in runs, UNKNOWN."""

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
    masking = facts.ranges.masks.units()
    ranges: dict[int, UnitRange] = {}
    for unit in units:
        most = half.largest / (1.0 if unit in masking else HEADROOM)
        values = dict.fromkeys(values_of(facts.graph.units[unit]))
        found = [_of_value(value, proven.of(value).most, observations, most) for value in values]
        ranges[unit] = max(
            found, key=lambda each: (_ORDER.index(each.knowledge), each.bound), default=_NOTHING
        )
    kinds = Counter(each.knowledge for each in ranges.values())
    proved, observed, unknown = (kinds[knowledge] for knowledge in Knowledge)
    return HalfRanges(ranges, RangeCounts(len(ranges), proved, observed, unknown, proven.inputs))


_ORDER = list(Knowledge)
_NOTHING = UnitRange(Knowledge.PROVEN, "", 0.0)


def _of_value(value: ir.Value, bound: float, observations: Seen, most: float) -> UnitRange:
    name = value.name or ""
    if bound <= most:
        return UnitRange(Knowledge.PROVEN, name, bound)
    seen = observations.get(name)
    if seen is not None and seen.most <= most:
        return UnitRange(Knowledge.OBSERVED, name, seen.most)
    return UnitRange(Knowledge.UNKNOWN, name, bound)
