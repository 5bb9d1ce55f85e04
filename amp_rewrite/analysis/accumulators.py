"""Accumulators: sums carried from step to step, which half rounds at each step.

    n' = n + 1;  s' = where(valid, s + x, s);  s' = max(s + x) + y;  s' = concat(s, s[-1] + x);  CumSum(x)
    s'[i] = s[i] + x              scatters that add or multiply: runtimes do so one by one

Half has steps of 2 at 2048, and a count ends there. What a sum adds in each step must be as exact as the sum:
the producers that feed a CumSum are float32 back to the input or the nearest layer. A residual, whose term
depends on the carried value, is a layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.operators.catalogue import (
    CONTROL_FLOW,
    EXTREMES,
    JOINS,
    REARRANGES,
    SELECTS,
    having,
    moving,
    names,
)
from amp_rewrite.operators.record import Move, Trait
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_SUMS, _BOUNDS = having(Trait.ADDS), moving(Move.BOUNDS)
_FUNCTIONS = having(Trait.ELEMENTWISE | Trait.AVERAGES | Trait.POOLS) | names(lambda each: each.limits)
_FEED = moving(*Move) - CONTROL_FLOW | having(Trait.ARITHMETIC) | _FUNCTIONS
"""Operators after which a sum still adds up what half rounded."""


def check(graph: UnitGraph) -> Mapping[int, Evidence]:
    """Return the units that add to a carried value, move it on the way, or feed a CumSum, and the scatters
    that add or multiply.
    """
    scatters = filter(accumulates, graph.nodes_of("ScatterElements", "ScatterND"))
    nodes = {**_running_sums(graph), **dict.fromkeys(scatters)}
    sums = [unit.index for unit in graph.units_of("CumSum")]
    feeders = reach(sums, graph.predecessors.__getitem__, lambda unit: _feeds(graph.units[unit].node))
    before = {unit for feeding in (*sums, *feeders) for unit in graph.predecessors[feeding]}
    layers = [unit for unit in before if effective_op(graph.units[unit].node) in having(Trait.MULTIPLIES)]
    accumulating = (*graph.of_nodes(nodes), *feeders, *sorted(layers))
    return dict.fromkeys(accumulating, Evidence(Authority.RANGE, Reason.ACCUMULATED))


def accumulates(node: ir.Node) -> bool:
    """Return whether a node is a scatter that adds or multiplies."""
    return effective_op(node) != node.op_type and effective_op(node) in ("Add", "Mul")


def _feeds(node: ir.Node) -> bool:
    return not node.domain and effective_op(node) in _FEED


def _running_sums(graph: UnitGraph) -> dict[ir.Node, None]:
    """Return the nodes from the loop-carried values of Loop and Scan to sums of these values."""
    nodes = dict[ir.Node, None]()
    for loop in graph.nodes_of("Loop", "Scan"):
        states = [
            each for each in control_flow.bindings(loop) or () if len(each.enters) == len(each.leaves) == 1
        ]
        carried = {body.inputs[port]: None for each in states for body, port in each.enters}
        readers = [unit for value in carried for unit, _ in graph.uses.get(value, ())]
        depending = {*readers, *reach(readers, graph.successors.__getitem__)}
        moving = {value for unit in depending for value in graph.units[unit].defs} | carried.keys()
        for body, port in (leaving for each in states for leaving in each.leaves):
            nodes |= _way(body.outputs[port], carried, moving)
    return nodes


def _way(
    output: ir.Value, carried: Collection[ir.Value], moving: Collection[ir.Value]
) -> dict[ir.Node, None]:
    """Return the nodes that add to carried values, and move them, up to an output of a body; none if another
    node is on the way, or if all terms are `moving`: if they depend on carried values themselves.
    """
    nodes, todo, adds = dict[ir.Node, None](), [output], False
    while todo:
        value = todo.pop()
        node = value.producer()
        if value in carried or node in nodes:
            continue
        sources = [*_passed(node, moving)] if node is not None and not node.domain else []
        if node is None or not sources:
            return {}
        nodes[node] = None
        todo += sources
        adds = adds or (node.op_type in _SUMS and len(sources) < len(patterns.operands(node)))
    return nodes if adds else {}


def _passed(node: ir.Node, moving: Collection[ir.Value]) -> Iterator[ir.Value]:
    """Yield the inputs that a node moves, selects from or adds to."""
    values = patterns.operands(node)
    if node.op_type == "Where":
        yield from values[1:]
    elif node.op_type in REARRANGES | SELECTS | EXTREMES | {"Relu"}:
        yield from values[:1]
    elif node.op_type in _SUMS | _BOUNDS | JOINS:
        yield from (value for value in values if value in moving)
