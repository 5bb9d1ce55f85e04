"""Sizes that operators require of their inputs because of the shapes of their weights and stored states."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs import recurrent_states
from amp_rewrite.running.inputs.consumers import NodeInput


def required_size(use: NodeInput, value: ir.Value, axis: int) -> int | None:
    """The size that this use of `value`, itself, cast or transposed, requires for an axis; None if any will
    do, or if the value is moved otherwise before.
    """
    constraint = _CONSTRAINTS.get(use.key)
    if constraint is None or value.shape is None:
        return None
    read = axis if use.reads(value) else _transposed(use, value, axis)
    return None if read is None else constraint(use, read, len(value.shape))


def _transposed(use: NodeInput, value: ir.Value, axis: int) -> int | None:
    """Where a Transpose of the value, which this use reads, has an axis; None where there is no such node."""
    read = use.input_at(use.index)
    node = None if read is None else read.producer()
    order = node.attributes.get("perm") if node is not None and node.op_type == "Transpose" else None
    if node is None or order is None or node.inputs[0] is not value or axis not in order.as_ints():
        return None
    return list(order.as_ints()).index(axis)


_Constraint = Callable[[NodeInput, int, int], int | None]


def _weight_shape(use: NodeInput) -> tuple[int, ...] | None:
    weight = stored_as(use.input_at(1))
    return None if weight is None else tuple(weight.shape.numpy())


def _same_as(weight_axis: int, input_axis: int) -> _Constraint:
    """The input's `input_axis` has the size of the weight's `weight_axis`; negative: from the end."""

    def constraint(use: NodeInput, axis: int, rank: int) -> int | None:
        shape = _weight_shape(use)
        if axis != input_axis % rank or shape is None or len(shape) < 2:
            return None
        return shape[weight_axis]

    return constraint


def _gemm(use: NodeInput, axis: int, _rank: int) -> int | None:
    shape = _weight_shape(use)
    if shape is None or axis != 1 - use.attribute("transA", 0):
        return None
    return shape[use.attribute("transB", 0)]


def _conv(use: NodeInput, axis: int, _rank: int) -> int | None:
    shape = _weight_shape(use)
    if shape is None or axis != 1:
        return None
    return shape[1] * use.attribute("group", 1)


def _recurrent(use: NodeInput, axis: int, rank: int) -> int | None:
    """The features that the weights take, and the batch of a stored state."""
    if axis == recurrent_states.batch_axis(use.node):
        return recurrent_states.stored_batch(use.node)
    return _same_as(2, 2)(use, axis, rank)


_CONSTRAINTS: dict[tuple[str, int], _Constraint] = {
    ("MatMul", 0): _same_as(-2, -1),
    ("Gemm", 0): _gemm,
    ("Conv", 0): _conv,
    **{(op, 0): _recurrent for op in recurrent_states.LAYERS},
}
