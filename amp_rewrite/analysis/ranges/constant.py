"""A constant and its model, as every rule of ranges sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.findings import Finding
from amp_rewrite.analysis.propagation import UnitUse
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import Fit, Half

Findings = Mapping[int, Finding]
"""The units that must stay float32, and why."""

NONE: Findings = {}


@dataclass(frozen=True, slots=True)
class Constant:
    """A value whose numbers are known: `size` of them, and `uses` are where it is read."""

    value: ir.Value
    fit: Fit
    size: int
    uses: tuple[UnitUse, ...]

    @property
    def name(self) -> str:
        """How a reason names it."""
        return f"'{self.value.name}'" if self.value.name else "a stored value"


@dataclass(frozen=True, slots=True)
class Context:
    """Where constants are looked at: the `graph`, the `half` type that they shall become, and the largest
    magnitude of each stored `dividends` value, and of any or 1 (a Reciprocal divides that).
    """

    graph: UnitGraph
    half: Half
    leaving: frozenset[ir.Value]
    dividends: Mapping[ir.Value, float]
    largest_dividend: float

    def node(self, unit: int) -> ir.Node:
        """The node of a unit."""
        return self.graph.units[unit].node


def magnitude(fit: Fit) -> float:
    """Of the largest finite number."""
    return max(-fit.low, fit.high)
