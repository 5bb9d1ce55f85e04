"""Accumulators: sums carried from step to step, which half would round at each step.

    n' = n + 1                          counts, means and variances of a stream (Welford)
    s' = where(valid, s + x, s)         sums of unpadded elements
    s' = exp(a * x) * s + x             states of selective scans
    s' = max(s + x) + y                 scores of a best path (Viterbi, time warping)
    s' = concat(s, s[-1] + x)           sums in a table, as a CumSum computes them within a node
    s' = 0.999 * s + 0.001 * x          moving averages, including a single step outside of loops
    s'[i] = s[i] + x                    scatters that add or multiply: runtimes do so one by one

Half has steps of 2 at 2048, and a count ends there. The producers that feed a CumSum are kept as exact as the
sum, back to the input or the nearest layer: the sum accumulates the error of a rounded weight in each step.
Where the term is computed from the sum by more than a movement or a scale (a residual), or its scale depends
on a loop-carried value (a gated cell), it is a layer. Outside of loops, the initial state of a step is an
input, a constant, or the output of a step of the same weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.propagation import reach
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.patterns import effective_op, moves, source
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_facts.operators import (
    ARITHMETIC,
    AVERAGES,
    BOUNDS,
    CONTROL_FLOW,
    DIVISORS,
    EXTREMES,
    JOINS,
    LIMITS,
    MOVERS,
    PRODUCTS,
    REARRANGES,
    SELECTS,
)
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_LOOPS = ("Loop", "Scan")
_SUMS = frozenset(("Add", "Sub", "Sum"))
_SCALES = frozenset(("Div", "Mul"))
_CHOICES = BOUNDS | JOINS.keys() - {"Where"}
_MOVES = REARRANGES | SELECTS | EXTREMES | {"Relu"}
_ACTIVATIONS = LIMITS.keys() | DIVISORS.keys() | {"LeakyRelu", "Relu", "Softplus"}
_FEED = MOVERS - CONTROL_FLOW | ARITHMETIC | AVERAGES | _ACTIVATIONS | {"Cast", "Resize"}
_ROUNDOFFS = 32
"""Maximum weight of a step outside of loops, in unit roundoffs of half: a state that is off by one roundoff
in each step ends 3 % of itself away from its exact value.
"""
_EXACT = 1e-6
"""Tolerance for the sum of both weights about 1, and for the weights of two consecutive steps."""


def check(graph: UnitGraph, half: Half) -> Mapping[int, Evidence]:
    """Return the units that add to an accumulator, move or scale it on the way, or feed a CumSum, and the
    scatters that add or multiply.
    """
    units = (unit for name in _LOOPS for unit in graph.by_operator.get(name, ()))
    loops = dict.fromkeys(graph.units[unit].node for unit in units)
    nodes = {node for loop in loops for node in _Step(graph, loop).sums()}
    nodes.update(_averages(graph, _ROUNDOFFS / half.integers))
    nodes.update(dict.fromkeys(filter(accumulates, graph.nodes_of("ScatterElements", "ScatterND"))))
    sums = [unit for unit in graph.by_operator.get("CumSum", ()) if not graph.units[unit].node.domain]
    feeders = reach(sums, graph.predecessors.__getitem__, lambda unit: _feeds(graph.units[unit].node))
    before = {unit for feeding in (*sums, *feeders) for unit in graph.predecessors[feeding]}
    layers = [unit for unit in before if effective_op(graph.units[unit].node) in PRODUCTS]
    accumulating = (*graph.of_nodes(nodes), *feeders, *sorted(layers))
    return dict.fromkeys(accumulating, Evidence(Authority.RANGE, Reason.ACCUMULATED))


def accumulates(node: ir.Node) -> bool:
    """Return whether a node is a scatter that adds or multiplies."""
    return effective_op(node) != node.op_type and effective_op(node) in ("Add", "Mul")


def _feeds(node: ir.Node) -> bool:
    return not node.domain and effective_op(node) in _FEED


class _Step:
    """Dataflow of a loop's carried values through one step of its body.

    Sets of carried values are bit masks: a search for each value would take quadratic time in loops that
    carry thousands.
    """

    def __init__(self, graph: UnitGraph, loop: ir.Node) -> None:
        states = [one for one in control_flow.bindings(loop) or () if len(one.enters) == len(one.leaves) == 1]
        ends = (one.enters + one.leaves for one in states)
        self._ends = {
            body.inputs[input_port]: body.outputs[output_port]
            for (body, input_port), (_, output_port) in ends
        }
        self._graph = graph
        self._bits = {value: 1 << at for at, value in enumerate(self._ends)}
        for body in control_flow.bodies(loop) if self._ends else ():
            self._spread(body)

    def sums(self) -> Iterator[ir.Node]:
        """Yield the nodes that compute running sums of loop-carried values."""
        for carried, output in self._ends.items():
            nodes = self._way(output, carried)
            if any(self._adds(node, carried) for node in nodes):
                yield from nodes

    def _spread(self, body: ir.Graph) -> None:
        """Set for each value of a body, and of nested bodies, the bits of its carried ancestors."""
        for node in self._graph.nodes[body]:
            before = 0
            for value in node.inputs:
                before |= self._before(value)
            for inner in control_flow.bodies(node):
                self._bits.update(dict.fromkeys(inner.inputs, before))
                self._spread(inner)
                for value in inner.outputs:
                    before |= self._before(value)
            if before:
                self._bits.update(dict.fromkeys(node.outputs, before))

    def _before(self, value: ir.Value | None) -> int:
        return self._bits.get(value, 0) if value is not None else 0

    def _adds(self, node: ir.Node, carried: ir.Value) -> bool:
        """Return whether a node adds a term that is independent of the carried value, unlike doubling."""
        terms = patterns.operands(node) if patterns.is_default(node, *_SUMS) else ()
        return any(not self._before(value) & self._bits[carried] for value in terms)

    def _way(self, output: ir.Value, carried: ir.Value) -> Mapping[ir.Node, None]:
        """Return the nodes that add to a carried value, and move or scale it, up to this output; none if any
        other node is on the way.
        """
        nodes, todo = dict[ir.Node, None](), [output]
        while todo:
            value = todo.pop()
            node = value.producer()
            if value is carried or node in nodes:
                continue
            sources = self._passed(node, carried) if node is not None and not node.domain else ()
            if node is None or not sources:
                return {}
            nodes[node] = None
            todo += sources
        return nodes

    def _passed(self, node: ir.Node, carried: ir.Value) -> tuple[ir.Value, ...]:
        """Return the inputs that a node moves, selects from, adds to or scales, of those that depend on a
        carried value.
        """
        values = patterns.operands(node)
        if node.op_type == "Where":
            return values[1:]
        if node.op_type in _MOVES:
            return values[:1]
        depending = tuple(value for value in values if self._before(value) & self._bits[carried])
        if node.op_type in _CHOICES | _SUMS:
            return depending
        is_gated = any(self._before(value) for value in values if value not in depending)
        is_scaled = node.op_type in _SCALES and len(depending) == 1 and not is_gated
        return depending if is_scaled else ()


class _Weighed(NamedTuple):
    """A node that multiplies a value by a number."""

    node: ir.Node
    value: ir.Value
    weight: float


class _Average(NamedTuple):
    """The nodes of a step, its initial state, and the weight of the new term."""

    nodes: tuple[ir.Node, ...]
    state: ir.Value
    weight: float


def _averages(graph: UnitGraph, most: float) -> Iterator[ir.Node]:
    """Yield the nodes of moving averages, outside of loops, whose new term has at most this weight."""
    totals = (graph.units[unit].node for unit in graph.by_operator.get("Add", ()))
    in_root = (node for node in totals if node.graph is graph.root)
    steps = {node: step for node in in_root if (step := _average(node, most)) is not None}
    for step in steps.values():
        state = source(step.state, moves)
        maker = state.producer()
        before = steps.get(maker) if maker is not None else None
        is_next = before is not None and abs(before.weight - step.weight) <= _EXACT
        if is_next or maker is None or stored_as(state) is not None:
            yield from step.nodes


def _average(total: ir.Node, most: float) -> _Average | None:
    """Return the step of a moving average that ends in a sum; None for any other sum."""
    terms = patterns.operands(total)
    if total.domain or len(terms) != 2:
        return None
    one, other = map(_weighed, terms)
    if one is not None and other is not None and abs(one.weight + other.weight - 1) <= _EXACT:
        new, state = sorted((one, other), key=lambda each: each.weight)
        if 0 < new.weight <= most:
            return _Average((new.node, state.node, total), state.value, new.weight)
    for step, state in ((one, terms[1]), (other, terms[0])):
        difference = source(step.value).producer() if step and 0 < step.weight <= most else None
        if step and difference is not None and _takes(difference, source(state)):
            return _Average((difference, step.node, total), state, step.weight)
    return None


def _takes(node: ir.Node, value: ir.Value) -> bool:
    """Return whether a node subtracts the value."""
    return patterns.is_default(node, "Sub") and source(patterns.operands(node)[1]) is value


def _weighed(value: ir.Value) -> _Weighed | None:
    node = source(value).producer()
    if node is None or not patterns.is_default(node, "Mul"):
        return None
    for port, weight in enumerate(map(patterns.scalar, node.inputs)):
        other = node.inputs[1 - port]
        if weight is not None and other is not None:
            return _Weighed(node, other, weight)
    return None
