"""The FLOPs of every node in one run of a model; a node in a body counts as often as the body runs.

The catalogue has a formula, or a count by element: data movement counts nothing; a normalisation, a softmax
or an interpolation a small constant; a reduction one for each element that it reads. Integer arithmetic
counts only in quantised products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.onnx_types.schema import CONTRIB
from amp_rewrite.operators.flops import Ports
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.preparing import value_sizes
from amp_rewrite.preparing.value_sizes import Shape, ValueShapes

Flops = Mapping[ir.Node, int | None]
"""The floating-point operations of nodes in one run of their model; None where unknown."""


@dataclass(frozen=True, slots=True)
class FlopCount:
    """A model with the types and shapes of its values and the FLOPs of its nodes in one run.

    `dims` are the sizes set for open dimensions. `flops` maps nodes to FLOPs, None where unknown; `runs` maps
    graphs to their number of runs. Assumptions: a body of a node in `unknown_trip_counts` runs once, the
    costlier branch of an If in `undecided_branches` is taken, and the dimensions in
    `value_sizes.assumed` are DEFAULT.
    """

    model: ir.Model
    types: Types
    dims: Dims
    shapes: ValueShapes
    flops: Flops
    runs: Mapping[ir.Graph, int]
    unknown_trip_counts: tuple[ir.Node, ...]
    undecided_branches: tuple[ir.Node, ...]

    @property
    def total(self) -> int:
        """The sum of all known FLOPs."""
        return sum(node_flops or 0 for node_flops in self.flops.values())


def count(model: ir.Model, types: Types, dims: Dims | None = None) -> FlopCount:
    """Count the FLOPs of a model whose functions are inlined; the FLOPs of a function call are unknown.

    `types` are the types of the model's values (element_types.infer). `dims` sets open dimensions of the
    inputs, by symbol or as `input:axis`; others count as 64. Raises OptionError for a dimension that is not
    open.
    """
    counter = _Counter(types, value_sizes.infer(model, types, dims))
    counter.cost(model.graph)
    counter.multiply(model.graph, 1)
    return FlopCount(
        model,
        types,
        dims or {},
        counter.shapes,
        counter.flops,
        counter.runs,
        tuple(counter.unknown_trip_counts),
        tuple(counter.undecided_branches),
    )


class _Counter:
    """Costs of one run of each graph, inner graphs first; then the number of runs of each graph."""

    def __init__(self, types: Types, value_shapes: ValueShapes) -> None:
        self.shapes = value_shapes
        self.flops: dict[ir.Node, int | None] = {}
        self.runs: dict[ir.Graph, int] = {}
        self.unknown_trip_counts: dict[ir.Node, None] = {}
        self.undecided_branches: dict[ir.Node, None] = {}
        self._types = types
        self._once: dict[ir.Node, int | None] = {}
        self._costs: dict[ir.Graph, int] = {}

    def cost(self, graph: ir.Graph) -> int:
        total = 0
        for node in graph:
            self._once[node] = of_node(node, self.shapes.of, floats=self._has_floats(node))
            total += self._once[node] or 0
            bodies = control_flow.bodies(node)
            costs = [self.cost(body) * (self.shapes.trip_counts.get(body) or 1) for body in bodies]
            total += max(costs, default=0) if _is_if(node) else sum(costs)
        self._costs[graph] = total
        return total

    def multiply(self, graph: ir.Graph, runs: int) -> None:
        self.runs[graph] = runs
        for node in graph:
            once = self._once[node]
            self.flops[node] = 0 if runs == 0 else None if once is None else once * runs
            for body, trips in self._bodies(node):
                self.multiply(body, runs * trips)

    def _bodies(self, node: ir.Node) -> Iterator[tuple[ir.Graph, int]]:
        bodies, trip_counts = control_flow.bodies(node), self.shapes.trip_counts
        run_counts = {body: trip_counts[body] for body in bodies if body in trip_counts}
        if _is_if(node) and len(run_counts) < len(bodies):
            self.undecided_branches[node] = None
            costliest = max(bodies, key=lambda body: self._costs[body])
            run_counts = {body: int(body is costliest) for body in bodies}
        for body in bodies:
            if body not in run_counts:
                self.unknown_trip_counts[node] = None
            yield body, run_counts.get(body, 1)

    def _has_floats(self, node: ir.Node) -> bool:
        types = (self._types.get(value) for value in (*node.inputs, *node.outputs) if value is not None)
        return any(kind is not None and kind.dtype.is_floating_point() for kind in types)


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and not node.domain


def of_node(
    node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None], *, floats: bool
) -> int | None:
    """Return the FLOPs of one run of a node without its bodies; None when they are unknown.

    `floats` holds if the node has float inputs or outputs: without any, only a quantised product counts.
    """
    record = record_of(node)
    is_integer = record.traits & Trait.CONVERTS and callable(record.flops)
    if record.flops == 0 or not (floats or is_integer):
        return 0
    if record.flops is None or node.domain not in ("", CONTRIB):
        return None
    if not callable(record.flops):
        values = node.inputs if record.traits & Trait.REDUCES else node.outputs
        shape = shape_of(values[0]) if values else None
        return None if shape is None else record.flops * math.prod(shape)
    ports = Ports(
        {port: shape_of(value) for port, value in enumerate(node.inputs) if value is not None},
        [shape_of(value) for value in node.outputs],
        {name: each.value for name, each in node.attributes.items() if not each.is_ref()},
    )
    try:
        return record.flops(ports)
    except (LookupError, ValueError, TypeError, ZeroDivisionError):
        return None  # a shape is unknown, or has fewer dimensions than the operator requires
