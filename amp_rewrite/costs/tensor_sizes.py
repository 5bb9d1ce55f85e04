"""Numbers of elements of values, from the shapes that the model declares: nothing is inferred here."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import constants, traversal
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.operators.catalogue import REARRANGES, having
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.open_sizes import DEFAULT
from amp_rewrite.preparing.value_sizes import Shape

UNKNOWN = 1 << 20
"""Elements of a value of unknown shape that follows from no known one: a batch of images, or of tokens."""

_MOST = 1 << 50
"""Upper bound of the elements of a value: hostile models may declare any shape."""


class Sizes:
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
