"""Moving averages, one step of them, outside of loops.

    s' = 0.999 * s + 0.001 * x          what the caller gives to the next step, or the next step of the graph
    s' = s + 0.001 * (x - s)

Half rounds away what a step adds to a state that is close: 0.95 ends as 0.79. A state is given, stored, or
made by another step of the same weight; other values are layers, and weighted sums of these lose no more than
layers do. Those in loops are running sums, whatever they add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.model.constants import stored_as
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_ROUNDOFFS = 32
"""The most that a step may weigh, in unit roundoffs of half: a state that is rounded off by one in each step
is 3 % of itself away from where it would be.
"""
_EXACT = 1e-6
"""How far from 1 both weights may be together, or weights of two steps from each other."""
_MOVES = tuple("Cast Expand Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split())
_DEPTH = 6
"""The most nodes that move a state on its way to a step."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The nodes of a step, the sum last, the state that they begin with, and the weight of what is new."""

    nodes: tuple[ir.Node, ...]
    state: ir.Value
    weight: float


def check(graph: UnitGraph, half: Half) -> Mapping[int, Evidence]:
    """The units that weigh a state and what is new, and add them up."""
    most, sums = _ROUNDOFFS / half.integers, graph.by_operator.get("Add", ())
    nodes = (node for unit in sums if (node := graph.units[unit].node).graph is graph.root)
    steps = {step.nodes[-1]: step for node in nodes if (step := _step(node, most)) is not None}
    held = {node for step in steps.values() if _has_state(step, steps) for node in step.nodes}
    evidence = Evidence(Authority.RANGE, Reason.MOVING_AVERAGE)
    return dict.fromkeys(graph.of_nodes(held), evidence)


def _step(total: ir.Node, most: float) -> _Step | None:
    """The step of a moving average that ends in this sum and weighs no more; None for any other."""
    given = patterns.operands(total) if patterns.is_default(total, "Add") else ()
    if len(given) != 2:
        return None
    scaled = [node for value in given if (node := patterns.maker(value, "Mul")) is not None]
    weights = [_weight(node) for node in scaled]
    if len(scaled) == 2 and abs(sum(weights) - 1) <= _EXACT and 0 < min(weights) <= most:
        state = _weighed(scaled[weights.index(max(weights))])
        return _Step((*scaled, total), state, min(weights))
    for node, weight in zip(scaled, weights, strict=True):
        step = _step_from(node, given) if 0 < weight <= most else None
        if step is not None:
            return _Step((step, node, total), patterns.operands(step)[1], weight)
    return None


def _has_state(step: _Step, steps: Mapping[ir.Node, _Step]) -> bool:
    """Whether a step begins with what is given or stored, or with what another one of its weight makes."""
    value = patterns.origin(step.state, _MOVES, _DEPTH)
    node = value.producer()
    other = steps.get(node) if node is not None else None
    is_same = other is not None and abs(other.weight - step.weight) <= _EXACT
    return is_same or node is None or stored_as(value) is not None


def _step_from(scaled: ir.Node, given: tuple[ir.Value, ...]) -> ir.Node | None:
    """What takes the state, one of these values, from what is new, before it is scaled; None for another."""
    makers = (patterns.maker(value, "Sub") for value in patterns.operands(scaled))
    node = next((node for node in makers if node is not None), None)
    states = [patterns.origin(value) for value in given]
    is_step = node is not None and node.inputs[1] is not None and patterns.origin(node.inputs[1]) in states
    return node if is_step else None


def _weighed(product: ir.Node) -> ir.Value:
    """What a node multiplies by its number."""
    values = patterns.operands(product)
    return next((value for value in values if patterns.scalar(value) is None), values[0])


def _weight(product: ir.Node) -> float:
    """The number that a node multiplies by; 0 where there is none."""
    return sum(patterns.scalar(value) or 0.0 for value in patterns.operands(product))
