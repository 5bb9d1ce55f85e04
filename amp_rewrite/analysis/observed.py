"""Values observed in runs of the float32 model, and those outside the range of half.

    Pow(x, 4)        where a sample showed 90,000: float16 ends at 65,504

What computes or reads such a value stays float32, unless it can be stored times a power of two. A factor of 2
is left for other inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis.idioms import gates
from amp_rewrite.analysis.ranges import Ranges
from amp_rewrite.analysis.units import Unit, UnitGraph, values_of
from amp_rewrite.errors import OptionError
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

HEADROOM = 2.0
"""The factor, one binade, by which other inputs may exceed the largest observed magnitude."""


@dataclass(frozen=True, slots=True)
class Extremes:
    """The lowest and the highest finite element of a value, in all runs that computed it.

    `samples` is the number of these runs. Of `counted` elements, `beyond` have a magnitude above the largest
    number of float16, `flushed` are rounded to 0 by it, and `not_finite` are infinite or NaN. The extremes
    hold for every run; elements are counted in some only (see `observe`).
    """

    low: float
    high: float
    samples: int = 1
    counted: int = 0
    beyond: int = 0
    flushed: int = 0
    not_finite: int = 0

    @property
    def most(self) -> float:
        """The largest finite magnitude."""
        return max(-self.low, self.high)

    @property
    def is_empty(self) -> bool:
        """Whether no element was finite: `low` is above `high`."""
        return self.low > self.high

    def join(self, other: Extremes) -> Extremes:
        """Return the extremes of both together."""
        return Extremes(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            samples=self.samples + other.samples,
            counted=self.counted + other.counted,
            beyond=self.beyond + other.beyond,
            flushed=self.flushed + other.flushed,
            not_finite=self.not_finite + other.not_finite,
        )

    def in_one_run(self) -> Extremes:
        """Return the same as extremes of a single run, of several values with one name."""
        return replace(self, samples=1)

    def is_beyond(self, half: Half) -> bool:
        """Return whether the largest magnitude, with HEADROOM, exceeds the largest number of half."""
        return self.most * HEADROOM > half.largest

    def is_faint(self, half: Half) -> bool:
        """Return whether half has few steps for the largest magnitude, or none."""
        return 0 < self.most < half.imprecise_below


NOTHING = Extremes(math.inf, -math.inf, samples=0)
"""The extremes of no observation: the identity of `join`."""

Seen = Mapping[str, Extremes]
"""The observed extremes of the values of a model, by name."""
Held = Mapping[str, Evidence]
"""The evidence of a caller for float32, by the names of node outputs."""


def pinned_units(graph: UnitGraph, names: Held) -> Mapping[int, Evidence]:
    """Return the units of the nodes that output these names; names that the model lacks are ignored, as their
    nodes may be folded.
    """
    outputs = ((u.index, value.name or "") for u in graph.units for value in u.node.outputs) if names else ()
    return {index: names[name] for index, name in outputs if name in names}


def refuse_foreign(graph: ir.Graph, observations: Seen) -> None:
    """Raise OptionError for observations of another model, which would silently have no effect."""
    outputs = (value for node in graph for value in node.outputs)
    if observations and all(value.name not in observations for value in (*graph.inputs, *outputs)):
        raise OptionError(
            "holds no value of this model", where="observed", remedy="observe the model that you rewrite"
        )


def check(graph: UnitGraph, observations: Seen, value_ranges: Ranges, half: Half) -> dict[int, Evidence]:
    """Return the units with inputs or outputs outside the range of half, except values that saturate a gate;
    on the way from a mask to a softmax only what is too large.
    """
    if not observations:
        return {}
    masking = value_ranges.masks.units()
    saturated = {value.name for value in gates.find_saturated(graph)}
    relevant = {name: each for name, each in observations.items() if name not in saturated}
    evidence = ((unit.index, _evidence(unit, relevant, half, unit.index in masking)) for unit in graph.units)
    return {unit: each for unit, each in evidence if each is not None}


def _evidence(unit: Unit, observations: Seen, half: Half, is_masked: bool) -> Evidence | None:
    names = (value.name or "" for value in values_of(unit))
    extremes = ((name, observations[name]) for name in names if name and name in observations)
    if is_masked:
        extremes = ((name, replace(each, low=max(each.low, -each.high))) for name, each in extremes)
    name, most = max(extremes, key=lambda pair: pair[1].most, default=("", NOTHING))
    if not most.is_beyond(half):
        return None
    reason = Reason.OBSERVED_OVERFLOW
    return Evidence(
        Authority.OBSERVATION, reason, name, most.most, half.largest, half.name, text=_frequency(most, half)
    )


def _frequency(extremes: Extremes, half: Half) -> str:
    """Return the number of samples and the share of elements beyond half's range; empty if unknown."""
    times = f" in {extremes.samples:,} samples" if extremes.samples > 1 else ""
    if extremes.most <= half.largest:
        return f"{times}, too near for other inputs"
    share = (
        f" ({extremes.beyond / extremes.counted:.2%} of its elements are beyond)" if extremes.beyond else ""
    )
    return times + share
