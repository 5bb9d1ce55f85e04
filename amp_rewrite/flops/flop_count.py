"""FLOPs of every node in one run of a model, bodies counted as often as they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.flops import formulas as flops
from amp_rewrite.flops import shapes
from amp_rewrite.flops.opened import Dims
from amp_rewrite.flops.shapes import Shapes
from amp_rewrite.onnx_types import control_flow, element_types

Flops = Mapping[ir.Node, int | None]
"""The floating-point operations of nodes in one run of their model; None where they are not known."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the nodes of a model compute in one run.

    `flops` holds them by node, None where they are not known; `runs` how often each graph runs. What had
    to be assumed: a body of `unknown_trips` runs once, of the branches of `either` the dearer is taken,
    and the dimensions that `shapes.assumed` names are 1.
    """

    flops: Flops
    runs: Mapping[ir.Graph, int]
    shapes: Shapes
    unknown_trips: tuple[ir.Node, ...]
    either: tuple[ir.Node, ...]

    def of(self, node: ir.Node) -> int | None:
        """The FLOPs of a node in one run of the model; None where nobody knows."""
        return self.flops.get(node)

    @property
    def total(self) -> int:
        """All FLOPs that are known."""
        return sum(found or 0 for found in self.flops.values())


def count(model: ir.Model, types: element_types.Types, dims: Dims | None = None) -> Work:
    """Counts the FLOPs of a model whose functions are inlined: a call of a function has none that are known.

    `types` are those of the model's values (element_types.infer). `dims` gives the open dimensions of the
    inputs a size, by symbol or as `input:axis`; others count as 1. Raises OptionError for a dimension that
    is not open.
    """
    counter = _Counter(types, shapes.infer(model, types, dims))
    counter.cost(model.graph)
    counter.spread(model.graph, 1)
    return counter.work()


class _Counter:
    """First the cost of one run of each graph, from the inside out; then how often each runs."""

    def __init__(self, types: element_types.Types, found: Shapes) -> None:
        self._types = types
        self._shapes = found
        self._once: dict[ir.Node, int | None] = {}
        self._costs: dict[ir.Graph, int] = {}
        self._runs: dict[ir.Graph, int] = {}
        self._flops: dict[ir.Node, int | None] = {}
        self._unknown_trips: dict[ir.Node, None] = {}
        self._either: dict[ir.Node, None] = {}

    def cost(self, graph: ir.Graph) -> int:
        total = 0
        for node in graph:
            self._once[node] = flops.of_node(node, self._shapes.of, floats=self._has_floats(node))
            total += self._once[node] or 0
            costs = [self.cost(body) * (self._trips(body) or 1) for body in control_flow.bodies(node)]
            total += max(costs, default=0) if _chooses(node) else sum(costs)
        self._costs[graph] = total
        return total

    def spread(self, graph: ir.Graph, runs: int) -> None:
        self._runs[graph] = runs
        for node in graph:
            once = self._once[node]
            self._flops[node] = 0 if runs == 0 else None if once is None else once * runs
            for body, trips in self._bodies(node):
                self.spread(body, runs * trips)

    def work(self) -> Work:
        return Work(self._flops, self._runs, self._shapes, tuple(self._unknown_trips), tuple(self._either))

    def _bodies(self, node: ir.Node) -> Iterator[tuple[ir.Graph, int]]:
        bodies = control_flow.bodies(node)
        known = {body: trips for body in bodies if (trips := self._trips(body)) is not None}
        if _chooses(node) and len(known) < len(bodies):
            self._either[node] = None
            dearest = max(bodies, key=lambda body: self._costs[body])
            known = {body: int(body is dearest) for body in bodies}
        for body in bodies:
            if body not in known:
                self._unknown_trips[node] = None
            yield body, known.get(body, 1)

    def _trips(self, body: ir.Graph) -> int | None:
        return self._shapes.trips.get(body)

    def _has_floats(self, node: ir.Node) -> bool:
        found = (self._types.get(value) for value in (*node.inputs, *node.outputs) if value is not None)
        return any(kind is not None and kind.dtype.is_floating_point() for kind in found)


def _chooses(node: ir.Node) -> bool:
    return node.op_type == "If" and not node.domain
