"""Forward dataflow analysis of a model: a fact of each value, in one pass over the nodes, and what depends on
some values.

A loop-carried value is unknown, so that no fixpoint is sought; a scanned one has the fact of the whole, and
what leaves a body is the join over its branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import onnx_ir as ir

from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.onnx_types.control_flow import Binding
from amp_rewrite.operators import catalogue
from amp_rewrite.operators.record import Trait

Fact = TypeVar("Fact")


@dataclass(slots=True)
class Forward(Generic[Fact]):
    """An analysis, and the facts found so far.

    `unknown` returns the fact of a value that no transfer gave: an input, a stored or an omitted one. `join`
    returns what holds of a value of which one of several facts holds. `transfer` returns the facts of the
    outputs of a node without bodies, in order, and none for those that are unknown.
    """

    unknown: Callable[[ir.Value | None], Fact]
    join: Callable[[Iterable[Fact]], Fact]
    transfer: Callable[[ir.Node], Iterable[Fact]]
    facts: dict[ir.Value | None, Fact] = field(default_factory=dict["ir.Value | None", Fact])

    def of(self, value: ir.Value | None) -> Fact:
        """Return the fact of a value."""
        if value not in self.facts:
            self.facts[value] = self.unknown(value)
        return self.facts[value]

    def visit(self, graph: ir.Graph) -> None:
        """Find the facts of the values of a graph, and of the bodies in it."""
        for node in graph:
            bodies = control_flow.bodies(node)
            if bodies:
                self._visit_bodies(node, bodies, control_flow.bindings(node) or ())
            else:
                self.facts.update(zip(node.outputs, self.transfer(node), strict=False))

    def _visit_bodies(self, node: ir.Node, bodies: Iterable[ir.Graph], bindings: Iterable[Binding]) -> None:
        for each in bindings:
            outside = [self.of(node.inputs[port]) for port in each.inputs]
            if outside and not (each.leaves or each.mapped):  # neither carried nor an element of a sequence
                self.facts.update((body.inputs[port], self.join(outside)) for body, port in each.enters)
        for body in bodies:
            self.visit(body)
        for each in bindings:
            if each.leaves and not each.mapped:
                inside = [self.of(body.outputs[port]) for body, port in each.leaves]
                joined = self.join([*inside, *(self.of(node.inputs[port]) for port in each.inputs)])
                self.facts.update((node.outputs[port], joined) for port in each.outputs)


Test = Callable[[ir.Node], bool]


def follow(
    graph: ir.Graph,
    nodes: GraphNodes,
    values: set[ir.Value | None],
    starts: Test,
    stops: Test = lambda _: False,
) -> None:
    """Add to `values` all that depends on them, and on the nodes that pass the test `starts`, in a graph and
    its bodies; what nodes that pass `stops` read does not count.
    """
    for node in nodes[graph]:
        is_reached = starts(node) or (not values.isdisjoint(node.inputs) and not stops(node))
        for body in control_flow.bodies(node):
            if is_reached:
                values.update(body.inputs)
            follow(body, nodes, values, starts, stops)
            is_reached = is_reached or not values.isdisjoint(body.outputs)
        if is_reached:
            values.update(node.outputs)


def varying_values(
    nodes: GraphNodes, starts: Test = lambda _: False, *, by_sizes: bool = True
) -> set[ir.Value | None]:
    """Return the values that depend on an input of the model or of a body, on random numbers, or on the nodes
    that pass the test `starts`, other than by static sizes alone, or by any unless `by_sizes`.

    A runtime computes all others once.
    """
    inputs = (value for graph in nodes for value in graph.inputs if value.const_value is None)
    values: set[ir.Value | None] = set(inputs)
    follow(
        next(iter(nodes)),
        nodes,
        values,
        lambda node: starts(node) or bool(catalogue.find(node.domain, node.op_type).traits & Trait.DRAWS),
        lambda node: _asks_for_sizes(node, known=by_sizes),
    )
    return values


def _asks_for_sizes(node: ir.Node, *, known: bool) -> bool:
    """Return whether it is a Shape or Size, of a static shape if `known`: onnxruntime computes it once."""
    if node.domain or node.op_type not in ("Shape", "Size"):
        return False
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return not known or (shape is not None and shape.is_static())
