"""Sizes that operators require of their inputs because of the shapes of their weights."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.cache_sizes import CACHE_INPUTS, cache_size
from amp_rewrite.running.inputs.consumers import NodeInput


def required_size(use: NodeInput, value: ir.Value, axis: int) -> int | None:
    """The size that this use of `value`, itself or cast, requires for an axis; None if any will do, or if the
    value is moved before.
    """
    constraint = _CONSTRAINTS.get(use.key)
    if constraint is None or value.shape is None or not use.reads(value):
        return None
    return constraint(use, axis, len(value.shape))


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


_CONSTRAINTS: dict[tuple[str, int], _Constraint] = {
    ("MatMul", 0): _same_as(-2, -1),
    ("Gemm", 0): _gemm,
    ("Conv", 0): _conv,
    **{(op, 0): _same_as(2, 2) for op in ("LSTM", "GRU", "RNN")},
    **dict.fromkeys(CACHE_INPUTS, cache_size),
}
