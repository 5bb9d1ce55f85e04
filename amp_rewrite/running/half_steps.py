"""Nodes in float32 that take the place of one node, and round where a kernel does in half."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types.element_types import tensor

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


class Steps:
    """Makes nodes for `node`, whose half type is `half`, in a model of that opset."""

    def __init__(self, node: ir.Node, half: ir.DataType, opset: int, names: UniqueNames) -> None:
        self.node, self.half, self.opset = node, half, opset
        self._names = names
        self.made: list[ir.Node] = []

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """The inputs of the node."""
        return self.node.inputs

    def given(self, port: int) -> ir.Value:
        """An input that the operator requires."""
        value = self.node.inputs[port]
        assert value is not None, "an input that the operator requires"
        return value

    def third(self) -> ir.Value | None:
        """The third input of the node, such as a bias; None where it has none."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    def number(self, name: str, default: Any) -> Any:
        """An attribute of the node, or its default."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def op(self, operator: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> ir.Value:
        """The last output of a new node."""
        kept = {name: value for name, value in attributes.items() if value is not None}
        node = ir.node(operator, inputs, kept, num_outputs=outputs)
        return self._add(node)

    def again(self, *inputs: ir.Value | None) -> ir.Value:
        """What the node itself computes, sums in float32, of its first inputs or of others."""
        node = ir.Node(self.node.domain, self.node.op_type, inputs, self.node.attributes.values())
        return self._add(node)

    def _add(self, node: ir.Node) -> ir.Value:
        for value in node.outputs:
            value.name = self._names.of_value(self.node.outputs[0], node.op_type)
        node.name = self._names.of_node(node.outputs[-1].name or "")
        self.made.append(node)
        return node.outputs[-1]

    def floats(self, values: Any) -> ir.Value:
        """A stored tensor in float32."""
        return self.op("Constant", value=ir.tensor(np.asarray(values, np.float32)))

    def whole(self, values: Any) -> ir.Value:
        """A stored tensor of integers."""
        return self.op("Constant", value=ir.tensor(np.asarray(values, np.int64)))

    def rounded(self, value: ir.Value) -> ir.Value:
        """A value as half holds it."""
        return self.op("Cast", self.op("Cast", value, to=int(self.half)), to=int(FLOAT))

    def added(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """A sum in half."""
        return self.rounded(self.op("Add", one, other))

    def times(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """A product in half."""
        return self.rounded(self.op("Mul", one, other))

    def shaped(self, value: ir.Value, dims: Sequence[int]) -> ir.Value:
        """A value in another shape, with 0 and -1 as Reshape has them."""
        return self.op("Reshape", value, self.whole(dims))

    def like(self, value: ir.Value, other: ir.Value) -> ir.Value:
        """A value in the shape of another."""
        return self.op("Reshape", value, self.op("Shape", other))

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of an axis, [1]."""
        return self.op("Gather", self.op("Shape", value), self.whole([axis]), axis=0)

    def picked(self, value: ir.Value, axis: int, first: int, end: int) -> ir.Value:
        """A range of an axis."""
        return self.op("Gather", value, self.whole(range(first, end)), axis=axis)

    def zeros(self, value: ir.Value) -> ir.Value:
        """As many zeros."""
        if self.opset < _SINCE_ZEROS:
            return self.op("Mul", value, self.floats(0))
        return self.op("ConstantOfShape", self.op("Shape", value))

    def looped(
        self, trips: ir.Value, start: ir.Value, step: Callable[[Steps, ir.Value, ir.Value], ir.Value]
    ) -> ir.Value:
        """What `step` makes of `start` in that many turns, of the turn's number ([1]) and the last result."""
        inner = Steps(self.node, self.half, self.opset, self._names)
        turn, go, last = (inner.taken(kind) for kind in (INT64, ir.DataType.BOOL, FLOAT))
        made = step(inner, inner.shaped(turn, [1]), last)
        body = ir.Graph([turn, go, last], [inner.op("Identity", go), made], nodes=inner.made, name="body")
        return self.op("Loop", trips, None, start, body=body)

    def taken(self, kind: ir.DataType) -> ir.Value:
        """An input of a body."""
        shape = None if kind == FLOAT else ir.Shape(())
        return ir.Value(
            name=self._names.of_value(self.node.outputs[0], "taken"), type=tensor(kind), shape=shape
        )


_SINCE_ZEROS = 9
"""The opset of ConstantOfShape."""


def sizes(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The dimensions of a value, None for one that is not known; None without a known rank."""
    shape = value.shape if value is not None else None
    return None if shape is None else tuple(dim if isinstance(dim, int) else None for dim in shape)


def fixed(value: ir.Value | None) -> tuple[int, ...] | None:
    """The dimensions of a value, where all are known."""
    known = sizes(value)
    found = tuple(dim for dim in known or () if dim is not None)
    return found if known is not None and len(found) == len(known) else None
