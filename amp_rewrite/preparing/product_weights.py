"""Where the output channels of a product are in its stored weight, and the weight with each one scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from amp_rewrite.preparing.stored_values import Doubles, Floats

_View = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """A weight viewed as (groups, inputs, channels of a group, rest).

    The output channels are the first and the third, in that order.
    """

    view: _View

    @property
    def channels(self) -> int:
        """How many output channels there are."""
        return self.view[0] * self.view[2]

    def scaled(self, weight: Floats, factors: Doubles) -> Floats:
        """The weight with each output channel multiplied by its factor in float64, rounded once."""
        product = np.empty(self.view, np.float32)
        shaped = factors.reshape(self.view[0], 1, self.view[2], 1)
        view = weight.reshape(self.view)
        with np.errstate(all="ignore"):
            np.multiply(view, shaped, out=product, dtype=np.float64, casting="same_kind")
        return product.reshape(weight.shape)

    def largest(self, weight: Floats) -> Doubles:
        """The largest magnitude in each output channel."""
        view = weight.reshape(self.view)
        return np.maximum(view.max((1, 3)), -view.min((1, 3))).reshape(-1).astype(np.float64)

    def typical(self, weight: Floats) -> Doubles:
        """The root mean square of each output channel."""
        view = weight.reshape(self.view)
        squares = np.einsum("gick,gick->gc", view, view, dtype=np.float64).reshape(-1)
        return np.sqrt(squares / (self.view[1] * self.view[3]))


def layout(node: ir.Node, weight: ir.TensorProtocol) -> WeightLayout | None:
    """The layout of the float32 weight of a product: its second input.

    None for other operators, for a Gemm that scales what it adds, and where the weight does not fit the node.
    """
    find = _LAYOUTS.get(node.op_type) if not node.domain else None
    odd = any(attribute.is_ref() for attribute in node.attributes.values())
    if find is None or odd or weight.dtype != ir.DataType.FLOAT or not weight.size:
        return None
    view = find(node, tuple(weight.shape.numpy()))
    return WeightLayout(view) if view is not None and prod(view) == weight.size else None


def _conv(_: ir.Node, dims: tuple[int, ...]) -> _View | None:
    return (1, 1, dims[0], prod(dims[1:])) if len(dims) > _MATRIX else None


def _conv_transpose(node: ir.Node, dims: tuple[int, ...]) -> _View | None:
    groups = _whole(node, "group", 1)
    if len(dims) <= _MATRIX or groups < 1:
        return None
    return groups, dims[0] // groups, dims[1], prod(dims[2:])


def _gemm(node: ir.Node, dims: tuple[int, ...]) -> _View | None:
    beta = node.attributes.get("beta")
    if len(dims) != _MATRIX or (beta is not None and beta.value != 1):
        return None
    return (1, 1, dims[0], dims[1]) if _whole(node, "transB", 0) else (1, dims[0], dims[1], 1)


def _matmul(node: ir.Node, dims: tuple[int, ...]) -> _View | None:
    """The channels of a BatchNormalization, the second axis, are columns of a matrix only."""
    data = node.inputs[0]
    rank = data.shape.rank() if data is not None and data.shape is not None else None
    return (1, dims[0], dims[1], 1) if len(dims) == rank == _MATRIX else None


_MATRIX = 2


def _whole(node: ir.Node, name: str, default: int) -> int:
    """An attribute that is a whole number; 0 where it is anything else."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return attribute.as_int() if attribute.type == ir.AttributeType.INT else 0


_LAYOUTS: Mapping[str, Callable[[ir.Node, tuple[int, ...]], _View | None]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
