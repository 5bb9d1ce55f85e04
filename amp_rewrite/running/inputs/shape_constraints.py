"""Sizes that operators demand of what they read, because of the weights that they have."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import NodeInput


def required_size(port: NodeInput, value: ir.Value, axis: int) -> int | None:
    """The size of an axis of `value`, which gets to this port; None when the port leaves it open."""
    demand = _DEMANDS.get(port.key)
    rank = len(value.shape) if value.shape is not None else 0
    return demand(port, axis, rank, port.input_at(port.index) is value) if demand else None


_Demand = Callable[[NodeInput, int, int, bool], int | None]


def _weight(index: int, axis: int, at: int) -> _Demand:
    """The size of a weight's axis, for the axis `at` of what is given; negative ones count from the end."""

    def demand(port: NodeInput, given: int, rank: int, straight: bool) -> int | None:
        weight = stored_as(port.input_at(index))
        if not straight or given != at % rank or weight is None or len(weight.shape) < 2:
            return None
        return weight.shape.numpy()[axis]

    return demand


def _gemm(port: NodeInput, given: int, _rank: int, straight: bool) -> int | None:
    weight = stored_as(port.input_at(1))
    flags = port.node.attributes
    turned = "transB" in flags and flags["transB"].as_int()
    own_turned = "transA" in flags and flags["transA"].as_int()
    if not straight or weight is None or given != (0 if own_turned else 1):
        return None
    return weight.shape.numpy()[1 if turned else 0]


def _conv(port: NodeInput, given: int, _rank: int, straight: bool) -> int | None:
    weight = stored_as(port.input_at(1))
    if not straight or weight is None or given != 1:
        return None
    groups = port.node.attributes.get("group")
    return weight.shape.numpy()[1] * (groups.as_int() if groups is not None else 1)


_DEMANDS: dict[tuple[str, int], _Demand] = {
    ("MatMul", 0): _weight(1, -2, -1),
    ("Gemm", 0): _gemm,
    ("Conv", 0): _conv,
    **{(op, 0): _weight(1, 2, 2) for op in ("LSTM", "GRU", "RNN")},
}
