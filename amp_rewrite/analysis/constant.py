"""Overflow: a stored number that is finite in float32, and not in half.

    x * 1e6;  Add(x, -1e9)        readers of the number, and of what only moves it, stay float32

Infinity in place of a number is wrong, or NaN a step later. A bound such as Max(x, -3.4e38) may be infinite,
and a mask that ends in a softmax is clamped to the lowest number of half instead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.propagation import UnitUse, reach
from amp_rewrite.analysis.units import UnitGraph, read_by
from amp_rewrite.model import traversal
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.operators.catalogue import MOVERS, names
from amp_rewrite.operators.record import Move
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

Findings = Mapping[int, Evidence]
"""Units that must stay float32, with the evidence."""

NONE: Findings = {}
CARRY_HUGE = MOVERS | names(lambda each: each.masks)
"""Operators that propagate numbers beyond half's range."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A value with known elements, `size` of them, and its uses."""

    value: ir.Value
    fit: Fit
    size: int
    uses: tuple[UnitUse, ...]

    def evidence(
        self, reason: Reason, half: Half, number: float | None, limit: float, text: str = ""
    ) -> Evidence:
        """Return evidence for float32 with this constant as the subject."""
        return Evidence(Authority.RANGE, reason, self.value.name or "", number, limit, half.name, text)


class Context:
    """The graph, the half type, and the fit of each constant."""

    def __init__(self, graph: UnitGraph, fits: Mapping[ir.Value, Fit], half: Half) -> None:
        self.graph = graph
        self.fits = fits
        self.half = half
        self.leaving = frozenset(graph.root.outputs)
        self.overflowing = set[int]()

    def node(self, unit: int) -> ir.Node:
        """Return the node of a unit."""
        return self.graph.units[unit].node

    @functools.cached_property
    def ending(self) -> frozenset[int]:
        """The units whose sums reach an output of the model with no other operators between than movement,
        bounds, and constant factors.
        """

        def before(unit: int) -> Iterable[int]:
            node, inputs = self.node(unit), read_by(self.graph, unit)
            data = [value for value in inputs if value not in self.fits]
            is_scale = node.op_type in ("Div", "LeakyRelu", "Mul", "Neg", "Relu") and len(data) == 1
            moves = record_of(node).move not in (None, Move.CONTROLS)
            return self.graph.producers(data) if is_scale or moves else ()

        return frozenset(traversal.reach(self.graph.producers(self.graph.root.outputs), before))


def overflow(constant: Constant, context: Context) -> Findings:
    """Return the units that read a constant that overflows, or values that overflow because of it, without
    those that an earlier call with the same context has returned.
    """
    readers = {use.unit for use in harmed(constant, context)} - context.overflowing

    def edges(unit: int) -> Iterable[int]:
        carries = effective_op(context.node(unit)) in CARRY_HUGE
        return context.graph.successors[unit] if carries else ()

    behind = reach(readers, edges, lambda unit: unit not in context.overflowing)
    context.overflowing.update(readers, behind)
    return dict.fromkeys((*readers, *behind), beyond(constant, context))


def beyond(constant: Constant, context: Context) -> Evidence:
    """Return the evidence of overflow: the constant's worst number, and the limit."""
    fit, half = constant.fit, context.half
    worst = fit.low if -fit.low > fit.high else fit.high
    return constant.evidence(Reason.OVERFLOW, half, worst, half.largest)


def harmed(constant: Constant, context: Context) -> Iterator[UnitUse]:
    """Return the uses of a constant that overflows, except those where infinity is an equivalent bound, as in
    Max(x, -3.4e38).
    """
    largest = context.half.largest
    for use in constant.uses:
        bound = (context.node(use.unit).op_type, use.port)
        below = bound[0] == "Max" or bound == ("Clip", 1)
        above = bound[0] == "Min" or bound == ("Clip", 2)
        if not (below and constant.fit.high < -largest) and not (above and constant.fit.low > largest):
            yield use
