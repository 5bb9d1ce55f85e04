"""Bytes, FLOPs and launches of each node, as far as they depend on its precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.units import Unit, UnitGraph, Use, value_of
from amp_rewrite.costs import flop_count
from amp_rewrite.model import constants, traversal
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow, element_types
from amp_rewrite.operators.catalogue import REARRANGES, having
from amp_rewrite.operators.record import Move, Trait
from amp_rewrite.policy.open_sizes import DEFAULT
from amp_rewrite.preparing.value_sizes import Shape

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
    sizes: KernelSizes,
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
        sizes: KernelSizes,
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


# Numbers of elements of values, from the shapes that the model declares: nothing is inferred here.

UNKNOWN = 1 << 20
"""Elements of a value of unknown shape that follows from no known one: a batch of images, or of tokens."""

_MOST = 1 << 50
"""Upper bound of the elements of a value: hostile models may declare any shape."""


class KernelSizes:
    """The sizes of a model's values; an open dimension of an input has the size set for it, else DEFAULT.

    A value without a shape, or with a dimension that no input has, counts as the largest value that its node
    reads, or that its bodies yield for it: such a dimension follows from others, and takes what these leave.
    """

    def __init__(self, graph: UnitGraph) -> None:
        self._known = graph.shape
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._elements: dict[ir.Value, int] = {}
        inputs = (value for inner in graph.nodes for value in inner.inputs)
        self._open = {str(dim) for value in inputs for dim in graph.shape(value) or ()}
        for node in traversal.nodes_inner_first(graph.root):
            if any(self._is_vague(value) for value in node.outputs):
                self._guess(node)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the shape of a value; None where its rank is unknown."""
        if value is None:
            return None
        if value not in self._shapes:
            self._shapes[value] = _sized(self._known(value), value)
        return self._shapes[value]

    def elements(self, value: ir.Value) -> int:
        """Return the number of elements of a value."""
        count = self._elements.get(value)
        if count is None:
            shape = self.shape(value)
            count = UNKNOWN if shape is None else min(math.prod(shape), _MOST)
            self._elements[value] = count
        return count

    def largest(self, values: Iterable[ir.Value]) -> int:
        """Return the elements of the largest of these; 1 where there is none."""
        return max(map(self.elements, values), default=1)

    def _is_vague(self, value: ir.Value) -> bool:
        shape = self._known(value)
        return self.shape(value) is None if shape is None else bool(self._unnamed_axes(shape, value))

    def _unnamed_axes(self, shape: ir.Shape, value: ir.Value) -> list[int]:
        """Return the axes of a value whose sizes no input has."""
        if shape.is_static():
            return []
        is_rearranged = _is_rearranged(value)
        return [
            axis
            for axis, dim in enumerate(shape)
            if not isinstance(dim, int)
            and (str(dim) not in self._open or (is_rearranged and dim.value is None))
        ]

    def _fitted(self, shape: ir.Shape, value: ir.Value) -> Shape:
        """Return the shape of a vague value, with about as many elements as it counts for."""
        sizes, unnamed = list(_sized(shape, value) or ()), self._unnamed_axes(shape, value)
        named = math.prod(size for axis, size in enumerate(sizes) if axis not in unnamed)
        left = self._elements[value] // max(1, named)
        for axis in unnamed:
            sizes[axis] = max(1, left if axis == unnamed[-1] else min(left, DEFAULT))
            left //= sizes[axis]
        return tuple(sizes)

    def _guess(self, node: ir.Node) -> None:
        results = {
            port: [body.outputs[at] for body, at in binding.leaves]
            for binding in control_flow.bindings(node) or ()
            for port in binding.outputs
        }
        vague = [(port, value) for port, value in enumerate(node.outputs) if self._is_vague(value)]
        read_sizes = [self.elements(value) for value in node.inputs if value is not None] if vague else []
        largest = max(read_sizes, default=-1)
        for port, value in vague:
            yielded_sizes = map(self.elements, results.get(port, ()))
            elements = max(largest, *yielded_sizes, -1)
            self._elements[value] = UNKNOWN if elements < 0 else elements
            if (shape := self._known(value)) is not None:
                self._shapes[value] = self._fitted(shape, value)


def _is_rearranged(value: ir.Value) -> bool:
    """Return whether a value has all elements of another, and no more."""
    node = value.producer()
    return node is not None and not node.domain and node.op_type in _REARRANGE


_REARRANGE = REARRANGES - having(Trait.REPEATS)


def _sized(shape: ir.Shape | None, value: ir.Value) -> Shape | None:
    if shape is not None:
        return tuple([dim if type(dim) is int and dim >= 0 else DEFAULT for dim in shape])
    tensor = constants.stored_as(value)
    return None if tensor is None else tuple(tensor.shape.numpy())
