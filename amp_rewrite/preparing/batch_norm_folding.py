"""Folding of BatchNormalization into the constant weights of its producer, as runtimes do in float32.

    scale * (W x + b - mean) / sqrt(variance + epsilon) + shift  =  (a W) x + (a (b - mean) + shift)

with a = scale / sqrt(variance + epsilon) for each output channel. In half a runtime does not fold, and rounds
between the two nodes: with statistics far from 1, that rounding dominates the error of a result.

A BatchNormalization before a product is not folded: its shift does not apply to the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import constants, graph_edits, patterns, traversal
from amp_rewrite.model.graph_edits import Doubles, Floats, StoredValues
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind

# The affine map of each channel in inference mode, from the constant parameters of a BatchNormalization.


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """The map of each channel, `factor * (x - mean) + shift`; `factor` is `scale` over the deviation."""

    scale: Doubles
    factor: Doubles
    mean: Doubles
    shift: Doubles


def read_batch_norm(node: ir.Node, store: StoredValues, channels: int) -> BatchNorm | None:
    """Return the parameters of a BatchNormalization of opset 7 or newer; its factor may be infinite or NaN.

    None in training mode, with several outputs, or without one constant float32 number for each channel.
    """
    vectors = [vector(store.tensor(value), channels) for value in node.inputs[1:]]
    parameters = [each for each in vectors if each is not None]
    if len(parameters) != len(vectors) or len(parameters) != _PARAMETERS or not _infers(node):
        return None
    scale, shift, mean, variance = parameters
    epsilon = node.attributes.get_float("epsilon", _EPSILON)
    return BatchNorm(scale, scale / np.sqrt(variance + epsilon), mean, shift)


_PARAMETERS = 4
_EPSILON = float(np.float32(1e-5))


def _infers(node: ir.Node) -> bool:
    """Return whether a node is in inference mode, with the same statistics for all elements of a channel."""
    attributes = node.attributes
    types = {name: (attribute.type, attribute.is_ref()) for name, attribute in attributes.items()}
    modes = all(attributes[name].value == plain for name, plain in _PLAIN.items() if name in attributes)
    has_epsilon = types.get("epsilon", _FLOAT) == _FLOAT
    return has_epsilon and modes and not any(value.name for value in node.outputs[1:])


_FLOAT = (ir.AttributeType.FLOAT, False)
_PLAIN = {"training_mode": 0, "spatial": 1}
"""The attribute values of inference per channel: `training_mode` from opset 14 on, `spatial` before 9."""


def vector(tensor: ir.TensorProtocol | None, channels: int) -> Doubles | None:
    """Return the values of a constant float32 tensor with one for each channel, else None."""
    if (
        tensor is None
        or tensor.dtype != ir.DataType.FLOAT
        or tensor.shape.numpy() not in ((channels,), (1, channels))
    ):
        return None
    return constants.read_whole(tensor).reshape(-1).astype(np.float64)


# The position of the output channels in the constant weight of a product, and scaling by channel.

_View = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """A weight viewed as (groups, inputs, channels of a group, rest).

    The output channels are the first and the third, in that order.
    """

    view: _View

    @property
    def channels(self) -> int:
        """The number of output channels."""
        return self.view[0] * self.view[2]

    def scaled(self, weight: Floats, factors: Doubles) -> Floats:
        """Return the weight with each output channel multiplied by its factor in float64, rounded once."""
        product = np.empty(self.view, np.float32)
        multipliers = factors.reshape(self.view[0], 1, self.view[2], 1)
        view = weight.reshape(self.view)
        with np.errstate(all="ignore"):
            np.multiply(view, multipliers, out=product, dtype=np.float64, casting="same_kind")
        return product.reshape(weight.shape)

    def largest(self, weight: Floats) -> Doubles:
        """Return the largest magnitude in each output channel."""
        view = weight.reshape(self.view)
        return np.maximum(view.max((1, 3)), -view.min((1, 3))).reshape(-1).astype(np.float64)

    def typical(self, weight: Floats) -> Doubles:
        """Return the root mean square of each output channel."""
        view = weight.reshape(self.view)
        squares = np.einsum("gick,gick->gc", view, view, dtype=np.float64).reshape(-1)
        return np.sqrt(squares / (self.view[1] * self.view[3]))


def weight_layout_of(node: ir.Node, weight: ir.TensorProtocol) -> WeightLayout | None:
    """Return the layout of the float32 weight of a product: its second input.

    None for other operators, for a Gemm that scales its addend, and for a weight of an invalid shape.
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
    groups = schema.integer(node, "group", 1)
    if len(dims) <= _MATRIX or groups < 1:
        return None
    return groups, dims[0] // groups, dims[1], prod(dims[2:])


def _gemm(node: ir.Node, dims: tuple[int, ...]) -> _View | None:
    beta = node.attributes.get("beta")
    if len(dims) != _MATRIX or (beta is not None and beta.value != 1):
        return None
    return (1, 1, dims[0], dims[1]) if schema.integer(node, "transB") else (1, dims[0], dims[1], 1)


def _matmul(node: ir.Node, dims: tuple[int, ...]) -> _View | None:
    """Return the view of a 2-D weight: the channels of a BatchNormalization, its second axis, are columns."""
    data = node.inputs[0]
    rank = data.shape.rank() if data is not None and data.shape is not None else None
    return (1, dims[0], dims[1], 1) if len(dims) == rank == _MATRIX else None


_MATRIX = 2


_LAYOUTS: Mapping[str, Callable[[ir.Node, tuple[int, ...]], _View | None]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
}


LARGEST = 1 << 28
"""The largest weight in bytes that is folded: folding needs all of it in memory."""

PRECISION = 8
"""The least bits of precision that a folded channel must keep: those of bfloat16."""

LAZY_FROM = 1 << 20
"""The size in bytes from which a weight is scaled lazily, when it is read."""


def fold(model: ir.Model, half: Half, exclusions: Container[ir.Node]) -> tuple[FormChange, ...]:
    """Fold each BatchNormalization in inference mode that is the only consumer of a product.

    The product has constant weights: a Conv, ConvTranspose, Gemm, or a MatMul of matrices, which leaves an
    Add of the shift. Nodes in `exclusions` are not folded, nor are those whose folded weights would overflow
    in `half` or lose the precision of a channel. Biases are computed in float64, and rounded once. A weight
    with other consumers is copied.
    """
    store = StoredValues(model)
    opset = element_types.default_opset(model.graph.opset_imports)
    norms = [n for n in traversal.every_node(model.graph) if patterns.is_default(n, "BatchNormalization")]
    changes: list[FormChange] = []
    for node in norms if opset >= _WITHOUT_TEST_MODE else ():
        with np.errstate(all="ignore"):
            folding = None if node in exclusions else _folding(node, store, half)
        if folding is not None:
            changes.append(FormChange(FormChangeKind.MERGED, pinned_as(node), pinned_as(folding.product)))
            _apply(folding, store)
    return tuple(changes)


_WITHOUT_TEST_MODE = 7
"""The first opset at which the number of outputs selects training mode; from 14 on an attribute does."""


@dataclass(frozen=True, slots=True)
class _Folding:
    """A BatchNormalization, the product before it, and the weights and bias of the folded product."""

    norm: ir.Node
    product: ir.Node
    weight: ir.TensorProtocol
    bias: ir.TensorProtocol


def _folding(node: ir.Node, store: StoredValues, half: Half) -> _Folding | None:
    """Return the folding of a BatchNormalization; None if it cannot be folded."""
    product = _product(node)
    weight = store.tensor(product.inputs[1]) if product is not None else None
    layout = weight_layout_of(product, weight) if product is not None and weight is not None else None
    if product is None or weight is None or layout is None or weight.nbytes > LARGEST:
        return None
    norm, bias = read_batch_norm(node, store, layout.channels), _bias(product, store, layout.channels)
    if norm is None or bias is None or not _is_held(weight, layout, norm, half):
        return None
    sums = norm.factor * (bias - norm.mean) + norm.shift
    if not (np.abs(sums) <= half.largest).all():
        return None
    return _Folding(
        node, product, _scale_weight(weight, layout, norm.factor), ir.tensor(sums.astype(np.float32))
    )


def _product(norm: ir.Node) -> ir.Node | None:
    """Return the producer whose only consumer is a BatchNormalization, if it has two inputs or more."""
    value = norm.inputs[0] if norm.inputs else None
    product = value.producer() if value is not None else None
    if value is None or product is None or product.graph is not norm.graph or len(product.inputs) < _OPERANDS:
        return None
    return product if len(value.uses()) == 1 and not value.is_graph_output() else None


_OPERANDS = 2


def _bias(product: ir.Node, store: StoredValues, channels: int) -> Doubles | None:
    """Return the constant bias of each channel; None if it is computed, or not one number for each."""
    value = product.inputs[2] if len(product.inputs) > _OPERANDS else None
    if value is None:
        return np.zeros(channels)
    return vector(store.tensor(value), channels)


def _is_held(weight: ir.TensorProtocol, layout: WeightLayout, norm: BatchNorm, half: Half) -> bool:
    """Return whether half represents the folded weight as well as the original.

    No value may overflow, and no channel underflow so far that fewer than PRECISION bits remain. A channel
    whose scale is negligible beside the largest is ignored: networks have dead channels.
    """
    array, factors = constants.read_whole(weight), np.abs(norm.factor)
    largest, typical = layout.largest(array), layout.typical(array)
    alive = np.abs(norm.scale) * half.integers >= np.abs(norm.scale).max()
    fits = (largest * factors <= np.maximum(largest, half.largest)) & np.isfinite(factors * largest)
    precise = typical * factors >= np.minimum(typical, half.smallest * 2**PRECISION)
    return bool(fits.all() and (precise | ~alive).all())


def _scale_weight(weight: ir.TensorProtocol, layout: WeightLayout, factors: Doubles) -> ir.TensorProtocol:
    """Return the weight with each channel multiplied by its factor; a large one is scaled lazily."""

    def product() -> ir.TensorProtocol:
        return ir.Tensor(layout.scaled(constants.read_whole(weight), factors))

    if weight.nbytes < LAZY_FROM:
        return product()
    return ir.LazyTensor(product, weight.dtype, ir.Shape(weight.shape.numpy()))


def _apply(folding: _Folding, store: StoredValues) -> None:
    """Merge a BatchNormalization into its product: into one node, or two that a runtime fuses."""
    norm, product = folding.norm, folding.product
    parameters = norm.inputs[1:]
    store.replace(product, 1, folding.weight)
    if product.op_type == "MatMul":
        shift = store.add(norm.outputs[0], "shift", folding.bias, norm)
        add = ir.Node("", "Add", [product.outputs[0], shift], name=norm.name)
        graph_edits.replace(norm, [add], add.outputs[0])
    elif len(product.inputs) > _OPERANDS and product.inputs[_OPERANDS] is not None:
        store.replace(product, _OPERANDS, folding.bias)
        _take_over(norm, product)
    else:
        product.resize_inputs(_OPERANDS + 1)
        product.replace_input_with(_OPERANDS, store.add(product.outputs[0], "bias", folding.bias, product))
        _take_over(norm, product)
    for value in parameters:
        store.forget(value)


def _take_over(norm: ir.Node, product: ir.Node) -> None:
    """Remove a BatchNormalization: the product becomes the producer of its output."""
    before, value = product.outputs[0], norm.outputs[0]
    before.metadata_props.update(value.metadata_props)
    before.doc_string = value.doc_string or before.doc_string
    graph_edits.replace(norm, [], before)
