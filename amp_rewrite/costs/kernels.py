"""Bytes, FLOPs and launches of each node, as far as they depend on its precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.units import Unit, UnitGraph, Use, value_of
from amp_rewrite.costs import flop_count
from amp_rewrite.costs.tensor_sizes import Sizes
from amp_rewrite.model import constants
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow, element_types
from amp_rewrite.operators.record import Move, Trait

LOOPED = 16
"""Runs of the body of a Loop or a Scan whose trip count is unknown: few models declare it."""

CONTRACTED = 1024
"""Length of the inner product of a product of unknown shape: the width of a common network."""


class Kernel(NamedTuple):
    """One run of a node, times `runs`.

    `units` are those of the node, by position. Each of them moves `moved` elements that vary, and `stored`
    ones of weights, at two or four bytes each; `fixed` are the bytes of all others. `product` are the FLOPs
    of a matrix product. It runs in the precision of the unit at position `data`, which reads the first input,
    and in half where there is none, as that input is half already. `width` is the length of its inner
    products, 0 where it is unknown.
    """

    units: tuple[int, ...]
    moved: tuple[int, ...]
    stored: tuple[int, ...]
    fixed: int
    product: int
    data: int | None
    width: int
    runs: int


def of_graph(
    graph: UnitGraph,
    sizes: Sizes,
    vary: set[ir.Value | None],
    inside: set[ir.Value],
    absorbed: frozenset[int],
    runs: Mapping[ir.Graph, int],
    half: ir.DataType,
) -> Iterator[Kernel]:
    """Yield the kernels of a model, in the order of `graph.nodes`; linear in nodes and ports.

    Values `inside` a fusion are not moved, and units that an idiom has `absorbed` launch none. `runs` is the
    number of runs of each graph. Nodes that move no data, or are computed once for all runs, have no kernel,
    nor have Casts between float32 and half: whether they run depends on the adjacent colours (borders).
    """
    units_of: dict[ir.Node, list[Unit]] = {}
    for unit in graph.units:
        units_of.setdefault(unit.node, []).append(unit)
    measure = _Measure(graph, sizes, vary, inside, frozenset((ir.DataType.FLOAT, half)))
    for inner, nodes in graph.nodes.items():
        for node in nodes:
            units = units_of.get(node, ())
            within = any(unit.index in absorbed for unit in units) if absorbed else False
            if not within and not measure.is_free(node):
                yield measure.kernel(node, units, runs[inner])


def body_runs(nodes: GraphNodes) -> dict[ir.Graph, int]:
    """Return the number of runs of each graph: 0 for the branch that a stored condition never takes."""
    runs = dict.fromkeys(nodes, 1)
    for inner, body_nodes in nodes.items() if len(nodes) > 1 else ():  # outer graphs come first
        for node in body_nodes:
            times = LOOPED if node.op_type in _LOOPS and not node.domain else 1
            for body in control_flow.bodies(node) if control_flow.may_have_bodies(node) else ():
                runs[body] = min(runs[inner] * times, _MOST_RUNS)
            if (idle := _idle_branch(node)) is not None:
                runs[idle] = 0
    return runs


def _idle_branch(node: ir.Node) -> ir.Graph | None:
    """Return the branch of an If that its condition, stored in the model, never takes; None without one."""
    condition = node.inputs[0] if node.op_type == "If" and not node.domain and node.inputs else None
    tensor = None if condition is None or condition.is_graph_input() else constants.stored_as(condition)
    if tensor is None or tensor.dtype is not ir.DataType.BOOL or tensor.size != 1:
        return None
    idle = node.attributes.get("else_branch" if constants.numbers(tensor).item() else "then_branch")
    return idle.as_graph() if idle is not None and idle.type is ir.AttributeType.GRAPH else None


_LOOPS = frozenset(("Loop", "Scan", "SequenceMap"))
_MOST_RUNS = LOOPED**4


class _Measure:
    def __init__(
        self,
        graph: UnitGraph,
        sizes: Sizes,
        vary: set[ir.Value | None],
        inside: set[ir.Value],
        pair: frozenset[ir.DataType],
    ) -> None:
        self._types, self._sizes, self._vary, self._inside = graph.types, sizes, vary, inside
        self._pair = pair

    def is_free(self, node: ir.Node) -> bool:
        """Return whether a node moves no data, or is computed once for all runs."""
        operator, domain = node.op_type, node.domain
        if record_of(node).traits & Trait.FREE:
            return True
        if self._vary.isdisjoint(node.outputs):
            return True
        has_bodies = control_flow.may_have_bodies(node) and bool(control_flow.bodies(node))
        return has_bodies or (operator == "Cast" and not domain and self._is_cast(node))

    def kernel(self, node: ir.Node, units: Sequence[Unit], runs: int) -> Kernel:
        """Return the kernel of a node."""
        output_elements = self._sizes.largest(node.outputs)
        # these read no more of their data than they write
        is_selected = record_of(node).move is Move.SELECTS or node.op_type == "EmbedLayerNormalization"
        most = output_elements if is_selected else _ALL
        sums = [self._elements(unit, most) for unit in units]
        # the FLOPs of all other operators take less time than their bytes
        is_product = record_of(node).traits & Trait.MULTIPLIES
        product, width = self._product(node, output_elements) if is_product else (0, 0)
        return Kernel(
            tuple([unit.index for unit in units]),
            tuple([activations for activations, _ in sums]),
            tuple([weights for _, weights in sums]),
            self._fixed(node, most),
            product,
            _data(node, units) if product else None,
            width,
            runs,
        )

    def _is_cast(self, node: ir.Node) -> bool:
        """Return whether a node is a Cast between float32 and half."""
        kinds = (self._types.get(value) for value in (*node.inputs, *node.outputs) if value is not None)
        return self._pair == frozenset(kind.dtype for kind in kinds if kind is not None)

    def _elements(self, unit: Unit, most: int) -> tuple[int, int]:
        """Return the numbers of varying and of constant elements that the ports of a unit move."""
        activations = weights = 0
        elements, vary, inside = self._sizes.elements, self._vary, self._inside
        for use in unit.uses:
            value = value_of(use)
            if value is None or value in inside:
                continue
            if value in vary:
                activations += min(elements(value), most)
            else:
                weights += min(elements(value), most)
        return activations + sum([elements(value) for value in unit.defs if value not in inside]), weights

    def _fixed(self, node: ir.Node, most: int) -> int:
        """Return the bytes of values that are not float32, such as indices, masks and half inputs."""
        total = 0.0
        types = self._types
        for value in (*node.inputs, *node.outputs):
            kind = types.get(value) if value is not None else None
            if value is None or kind is None or kind is _FLOAT32 or kind.dtype == ir.DataType.FLOAT:
                continue
            width = 1.0 if kind.dtype in _NO_WIDTH else kind.dtype.itemsize
            total += width * min(self._sizes.elements(value), most)
        return int(total)

    def _product(self, node: ir.Node, output_elements: int) -> tuple[int, int]:
        """Return the FLOPs of a product and the length of its inner products, 0 where shapes are unknown."""
        if not output_elements or any(
            value is not None and self._sizes.shape(value) is None for value in node.inputs
        ):
            return 2 * CONTRACTED * output_elements, 0
        flops = flop_count.of_node(node, self._sizes.shape, floats=True)
        return (
            (2 * CONTRACTED * output_elements, 0)
            if flops is None
            else (flops, max(flops // (2 * output_elements), 1))
        )


def _data(node: ir.Node, units: Sequence[Unit]) -> int | None:
    """Return the position of the unit that reads the first input of a node; None where it is not float32."""
    first = Use(node, 0)
    return next((at for at, unit in enumerate(units) if first in unit.uses), None)


_ALL = 1 << 62
_FLOAT32 = element_types.tensor(ir.DataType.FLOAT)
_NO_WIDTH = frozenset((ir.DataType.UNDEFINED, ir.DataType.STRING))
