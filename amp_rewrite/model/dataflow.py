"""Forward dataflow analysis of a model: a fact of each value, in one pass over the nodes.

A loop-carried value is unknown, so that no fixpoint is sought; a scanned one has the fact of the whole, and
what leaves a body is the join over its branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import onnx_ir as ir

from amp_rewrite.onnx_types import control_flow
from amp_rewrite.onnx_types.control_flow import Binding

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
