"""Running sums: what a Loop or Scan adds up from one step to the next, as a CumSum does within a node.

    n' = n + 1                          counts, means and variances of a stream (Welford)
    s' = s + x                          sums, positions that velocities are added to
    s' = 0.999 * s + 0.001 * x          moving averages

Half has steps of 2 at 2048, and a count ends there. Where what is added depends on the sum itself (a
residual, a gated cell), nothing is held: these are layers.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.derived import Derived
from amp_rewrite.analysis.from_inputs import read_by
from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.onnx_types.control_flow import Binding, bindings
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_LOOPS = ("Loop", "Scan")
_SUMS = ("Add", "Sub", "Sum")
_MOVES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_DEPTH = 6
"""The most nodes between a sum and what it is in the next step."""


def check(graph: UnitGraph, stored: Container[ir.Value]) -> Mapping[int, Evidence]:
    """The units that add to what a loop carries, and move or scale it for that."""
    loops = dict.fromkeys(graph.units[u].node for name in _LOOPS for u in graph.by_operator.get(name, ()))
    carried = (binding for loop in loops for binding in bindings(loop) or () if binding.enters)
    steps = _Steps(graph, Derived(stored))
    held = {node for binding in carried for node in steps.of(binding)}
    evidence = Evidence(Authority.RANGE, Reason.RUNNING_SUM)
    return {unit.index: evidence for unit in graph.units if unit.node in held} if held else {}


class _Steps:
    """What loops do to the values that they carry, in one step."""

    def __init__(self, graph: UnitGraph, derived: Derived) -> None:
        self._graph = graph
        self._derived = derived

    def of(self, binding: Binding) -> tuple[ir.Node, ...]:
        """The nodes that make a running sum of a carried value; none where it is something else."""
        if len(binding.leaves) != 1:
            return ()
        (body, entered), (_, left) = *binding.enters, *binding.leaves
        nodes = self._way(body.outputs[left], body.inputs[entered], _DEPTH) or ()
        return nodes if any(patterns.is_default(node, *_SUMS) for node in nodes) else ()

    def _way(self, value: ir.Value | None, carried: ir.Value, depth: int) -> tuple[ir.Node, ...] | None:
        """The nodes that add to a carried value, and move or scale it, up to this one; None for another."""
        node = value.producer() if value is not None and value is not carried else None
        if node is None or not depth:
            return () if value is carried else None
        before = patterns.moved_or_scaled(node, _MOVES, self._derived.has)
        before = self._added_to(node, carried) if before is None else before
        nodes = self._way(before, carried, depth - 1) if before is not None else None
        return None if nodes is None else (*nodes, node)

    def _added_to(self, node: ir.Node, carried: ir.Value) -> ir.Value | None:
        """The one term of a sum that depends on a carried value; None where there are others, or none."""
        terms = patterns.operands(node) if patterns.is_default(node, *_SUMS) else ()
        depending = [value for value in terms if self._depends(value, carried)]
        return depending[0] if len(depending) == 1 else None

    def _depends(self, value: ir.Value, carried: ir.Value) -> bool:
        """Whether a value is computed from a carried one in the same step."""
        made = self._graph.producer.get(value)
        if value is carried or made is None or self._is_loop(made):
            return value is carried
        before = reach([made], self._graph.predecessors.__getitem__, lambda unit: not self._is_loop(unit))
        return any(carried in read_by(self._graph, unit) for unit in (made, *before))

    def _is_loop(self, unit: int) -> bool:
        return self._graph.units[unit].node.op_type in _LOOPS
