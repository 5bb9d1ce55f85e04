"""The constant and the context that every rule of ranges takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.propagation import UnitUse
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

Findings = Mapping[int, Evidence]
"""The units that must stay float32, and why."""

NONE: Findings = {}


@dataclass(frozen=True, slots=True)
class Constant:
    """A value with known elements, `size` of them, and its uses."""

    value: ir.Value
    fit: Fit
    size: int
    uses: tuple[UnitUse, ...]

    def evidence(
        self, reason: Reason, half: Half, number: float | None, limit: float | None = None
    ) -> Evidence:
        """What holds a unit in float32 because of this constant."""
        return Evidence(Authority.RANGE, reason, self.value.name or "", number, limit, half.name)


@dataclass(frozen=True, slots=True)
class Context:
    """The `graph`, the `half` type, how the stored values fit into it, the outputs of the model (`leaving`),
    the units behind which nothing is added up (`ending`), the largest magnitude of each stored value that is
    a dividend, and of all of them and 1 (the dividend of a Reciprocal), and the highest power that a divisor
    may be taken to.
    """

    graph: UnitGraph
    half: Half
    fits: Mapping[ir.Value, Fit]
    leaving: frozenset[ir.Value]
    ending: frozenset[int]
    dividends: Mapping[ir.Value, float]
    largest_dividend: float
    highest_power: float

    def node(self, unit: int) -> ir.Node:
        """The node of a unit."""
        return self.graph.units[unit].node
