"""Running sums: what a Loop or Scan adds up from one step to the next, as a CumSum does within a node.

    n' = n + 1                          counts, means and variances of a stream (Welford)
    s' = s + x                          sums, positions that velocities are added to
    s' = where(valid, s + x, s)         the same of what is not padding
    s' = 0.999 * s + 0.001 * x          moving averages; also s + 0.001 * (x - s)
    s' = exp(a * x) * s + x             states of selective scans
    s' = max(s + x) + y                 scores of a best path (Viterbi, time warping)
    s' = concat(s, s[-1] + x)           sums in a table

Half has steps of 2 at 2048, and a count ends there. Where what is added is computed from the sum by more than
that (a residual), or what it is multiplied with depends on what the loop carries (a gated cell), nothing is
held: these are layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import onnx_ir as ir

from amp_rewrite.analysis.carried_values import CarriedValues
from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.operators import (
    ARITHMETIC,
    AVERAGES,
    CONTROL_FLOW,
    DIVISORS,
    LIMITS,
    MOVERS,
    effective_op,
)
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_LOOPS = ("Loop", "Scan")
_SUMS = ("Add", "Sub", "Sum")
_SCALES = ("Div", "Mul")
_CHOICES = ("Concat", "Max", "Min", "ScatterElements", "ScatterND")
_MOVES = tuple(
    "Cast Clip Expand Gather GatherElements Identity Pad ReduceMax ReduceMin Relu Reshape Slice Squeeze TopK "
    "Transpose Unsqueeze".split()
)
_DEPTH = 6
"""The most nodes between a sum and what it is in the next step."""


def check(graph: UnitGraph) -> Mapping[int, Evidence]:
    """The units that add to what a loop carries, and move or scale it for that."""
    loops = dict.fromkeys(graph.units[u].node for name in _LOOPS for u in graph.by_operator.get(name, ()))
    held = {node for loop in loops for node in _Step(graph, loop).sums()}
    evidence = Evidence(Authority.RANGE, Reason.RUNNING_SUM)
    return dict.fromkeys((*graph.of_nodes(held), *_accumulated(graph)), evidence)


def _accumulated(graph: UnitGraph) -> Mapping[int, int]:
    """The units that make what a CumSum adds up, from the input or the layer on."""
    sums = (unit for unit in graph.by_operator.get("CumSum", ()) if not graph.units[unit].node.domain)
    return reach(sums, graph.predecessors.__getitem__, lambda unit: _carries(graph.units[unit].node))


def _carries(node: ir.Node) -> bool:
    return not node.domain and effective_op(node) in _CARRY


_ACTIVATIONS = LIMITS.keys() | DIVISORS.keys() | {"LeakyRelu", "Relu", "Softplus"}
_CARRY = MOVERS - CONTROL_FLOW | ARITHMETIC | AVERAGES | _ACTIVATIONS | {"Cast", "Resize"}


class _Step:
    """What a loop does to the values that it carries, in one step."""

    def __init__(self, graph: UnitGraph, loop: ir.Node) -> None:
        self._carried = CarriedValues(graph, loop)

    def sums(self) -> Iterator[ir.Node]:
        """The nodes that make running sums of what the loop carries."""
        for carried, left in self._carried.ends.items():
            nodes = self._way(left, carried)
            if any(self._adds(node, carried) for node in nodes):
                yield from nodes

    def _adds(self, node: ir.Node, carried: ir.Value) -> bool:
        """Whether a node adds something that does not depend on a carried value, as doubling does not."""
        before = self._carried.before
        given = patterns.operands(node) if patterns.is_default(node, *_SUMS) else ()
        return any(not before(value) & before(carried) for value in given)

    def _way(self, value: ir.Value, carried: ir.Value) -> tuple[ir.Node, ...]:
        """The nodes that add to a carried value, and move or scale it, up to this one; none for another."""
        found, values = dict[ir.Node, None](), (value,)
        for _ in range(_DEPTH + 1):
            makers = dict.fromkeys(value.producer() for value in values if value is not carried)
            nodes = [node for node in makers if node is not None]
            passed = [self._passed(node, carried) for node in nodes]
            if len(nodes) < len(makers) or not all(passed):
                return ()
            if not nodes:
                return tuple(found)
            found.update(dict.fromkeys(nodes))
            values = tuple(chain.from_iterable(passed))
        return ()

    def _passed(self, node: ir.Node, carried: ir.Value) -> tuple[ir.Value, ...]:
        """What a node moves, chooses from, adds to or scales, of what depends on a carried value."""
        given = patterns.operands(node)
        if patterns.is_default(node, "Where"):
            return given[1:]
        if patterns.is_default(node, *_MOVES):
            return given[:1]
        before = self._carried.before
        depending = tuple(value for value in given if before(value) & before(carried))
        if patterns.is_default(node, *_CHOICES, *_SUMS):
            return depending
        if len(depending) != 1 or not patterns.is_default(node, *_SCALES):
            return ()
        is_gated = any(before(value) for value in given if value not in depending)
        return () if is_gated else depending
