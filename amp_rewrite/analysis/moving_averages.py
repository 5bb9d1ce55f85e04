"""Moving averages, one step of them, outside of loops.

    s' = 0.999 * s + 0.001 * x          what the caller gives to the next step, or the next step of the graph
    s' = s + 0.001 * (x - s)

Half rounds away what a step adds to a state that is close: 0.95 ends as 0.79. Those in loops are running
sums, whatever they add up.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_ROUNDOFFS = 32
"""The most that a step may weigh, in unit roundoffs of half: a state that is rounded off by one in each step
is 3 % of itself away from where it would be.
"""
_EXACT = 1e-6
"""How far from 1 both weights may be together."""


def check(graph: UnitGraph, half: Half) -> Mapping[int, Evidence]:
    """The units that weigh a state and what is new, and add them up."""
    most, sums = _ROUNDOFFS / half.integers, graph.by_operator.get("Add", ())
    nodes = (node for unit in sums if (node := graph.units[unit].node).graph is graph.root)
    held = {part for node in nodes for part in _step(node, most)}
    evidence = Evidence(Authority.RANGE, Reason.MOVING_AVERAGE)
    return {unit.index: evidence for unit in graph.units if unit.node in held} if held else {}


def _step(total: ir.Node, most: float) -> tuple[ir.Node, ...]:
    """The nodes of a step of a moving average that ends in this sum and weighs no more; none of any other."""
    given = patterns.operands(total)
    if not patterns.is_default(total, "Add") or len(given) != 2:
        return ()
    scaled = [node for value in given if (node := patterns.maker(value, "Mul")) is not None]
    weights = [_weight(node) for node in scaled]
    if len(scaled) == 2 and abs(sum(weights) - 1) <= _EXACT and 0 < min(weights) <= most:
        return (*scaled, total)
    for node, weight in zip(scaled, weights, strict=True):
        step = _step_from(node, given) if 0 < weight <= most else None
        if step is not None:
            return (step, node, total)
    return ()


def _step_from(scaled: ir.Node, given: tuple[ir.Value, ...]) -> ir.Node | None:
    """What takes the state, one of these values, from what is new, before it is scaled; None for another."""
    makers = (patterns.maker(value, "Sub") for value in patterns.operands(scaled))
    node = next((node for node in makers if node is not None), None)
    states = [patterns.origin(value) for value in given]
    is_step = node is not None and node.inputs[1] is not None and patterns.origin(node.inputs[1]) in states
    return node if is_step else None


def _weight(product: ir.Node) -> float:
    """The number that a node multiplies by; 0 where there is none."""
    return sum(patterns.scalar(value) or 0.0 for value in patterns.operands(product))
