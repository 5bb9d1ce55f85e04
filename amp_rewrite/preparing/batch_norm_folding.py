"""BatchNormalization, folded into the stored weights of the product before it, as runtimes do in float32.

    scale * (W x + b - mean) / sqrt(variance + epsilon) + shift  =  (a W) x + (a (b - mean) + shift)

with a = scale / sqrt(variance + epsilon) for each output channel. In half a runtime does not fold, and rounds
between the two: where statistics are far from 1 that is most of the error of a result.

A BatchNormalization before a product is not folded: at the border its shift meets the padding.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import graph_edits, traversal
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing import batch_norm, product_weights, stored_values
from amp_rewrite.preparing.batch_norm import BatchNorm, Doubles
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.product_weights import WeightLayout
from amp_rewrite.preparing.stored_values import StoredValues

LARGEST = 1 << 28
"""The size in bytes above which a weight stays as it is: it is held in memory as a whole."""

PRECISION = 8
"""The bits of a channel that are left at least: as many as bfloat16 has."""

LAZY_FROM = 1 << 20
"""The size in bytes from which a weight is multiplied when it is read, not before."""


def fold(model: ir.Model, half: Half, kept: Container[ir.Node]) -> tuple[FormChange, ...]:
    """Folds each BatchNormalization in inference mode that alone reads a product with stored weights.

    The product is a Conv, ConvTranspose, Gemm, or a MatMul of matrices, which leaves an Add of the shift.
    What is `kept` stays, as does one whose folded weights `half` could not hold as it could the unfolded:
    values overflow, or a channel loses its precision. The sum is taken in float64, and rounded once. A weight
    with other readers is copied.
    """
    stored = StoredValues(model)
    opset = element_types.default_opset(model.graph.opset_imports)
    norms = list(filter(_is_norm, traversal.every_node(model.graph)))
    found: list[FormChange] = []
    for node in norms if opset >= _WITHOUT_TEST_MODE else ():
        with np.errstate(all="ignore"):
            folding = None if node in kept else _folding(node, stored, half)
        if folding is not None:
            found.append(FormChange(FormChangeKind.MERGED, pinned_as(node), pinned_as(folding.product)))
            _apply(folding, stored)
    return tuple(found)


_WITHOUT_TEST_MODE = 7
"""From this opset on the number of outputs says whether a BatchNormalization trains; from 14 an attribute."""


def _is_norm(node: ir.Node) -> bool:
    return node.op_type == "BatchNormalization" and not node.domain


@dataclass(frozen=True, slots=True)
class _Folding:
    """A BatchNormalization, the product before it, and what this stores once they are one."""

    norm: ir.Node
    product: ir.Node
    weight: ir.TensorProtocol
    bias: ir.TensorProtocol


def _folding(node: ir.Node, stored: StoredValues, half: Half) -> _Folding | None:
    """What a BatchNormalization folds into; None where it stays."""
    product = _product(node)
    weight = stored.tensor(product.inputs[1]) if product is not None else None
    layout = product_weights.layout(product, weight) if product is not None and weight is not None else None
    if product is None or weight is None or layout is None or weight.nbytes > LARGEST:
        return None
    norm, bias = batch_norm.read(node, stored, layout.channels), _bias(product, stored, layout.channels)
    if norm is None or bias is None or not _is_held(weight, layout, norm, half):
        return None
    sums = norm.factor * (bias - norm.mean) + norm.shift
    if not (np.abs(sums) <= half.largest).all():
        return None
    return _Folding(node, product, _scaled(weight, layout, norm.factor), ir.tensor(sums.astype(np.float32)))


def _product(norm: ir.Node) -> ir.Node | None:
    """The node that makes what a BatchNormalization alone reads, and reads at least two values."""
    value = norm.inputs[0] if norm.inputs else None
    product = value.producer() if value is not None else None
    if value is None or product is None or product.graph is not norm.graph or len(product.inputs) < _OPERANDS:
        return None
    return product if len(value.uses()) == 1 and not value.is_graph_output() else None


_OPERANDS = 2


def _bias(product: ir.Node, stored: StoredValues, channels: int) -> Doubles | None:
    """What a product adds to each channel; None where that is computed, or not one number for each."""
    value = product.inputs[2] if len(product.inputs) > _OPERANDS else None
    if value is None:
        return np.zeros(channels)
    return batch_norm.vector(stored.tensor(value), channels)


def _is_held(weight: ir.TensorProtocol, layout: WeightLayout, norm: BatchNorm, half: Half) -> bool:
    """Whether half holds the folded weight as it holds the unfolded.

    No value leaves its range, and no channel comes so close to its smallest number that fewer than PRECISION
    bits are left. A channel whose scale is lost beside the largest does not count: networks have dead ones.
    """
    array, factors = stored_values.read(weight), np.abs(norm.factor)
    largest, typical = layout.largest(array), layout.typical(array)
    alive = np.abs(norm.scale) * half.integers >= np.abs(norm.scale).max()
    fits = (largest * factors <= np.maximum(largest, half.largest)) & np.isfinite(factors * largest)
    precise = typical * factors >= np.minimum(typical, half.smallest * 2**PRECISION)
    return bool(fits.all() and (precise | ~alive).all())


def _scaled(weight: ir.TensorProtocol, layout: WeightLayout, factors: Doubles) -> ir.TensorProtocol:
    """The weight with each channel multiplied by its factor, now or, where it is large, when it is read."""

    def product() -> ir.TensorProtocol:
        return ir.Tensor(layout.scaled(stored_values.read(weight), factors))

    if weight.nbytes < LAZY_FROM:
        return product()
    return ir.LazyTensor(product, weight.dtype, ir.Shape(weight.shape.numpy()))


def _apply(folding: _Folding, stored: StoredValues) -> None:
    """Makes a product and the BatchNormalization behind it one node, or two that a runtime makes one."""
    norm, product = folding.norm, folding.product
    parameters = norm.inputs[1:]
    stored.replace(product, 1, folding.weight)
    if product.op_type == "MatMul":
        shift = stored.add(norm.outputs[0], "shift", folding.bias, norm)
        add = ir.Node("", "Add", [product.outputs[0], shift], name=norm.name)
        graph_edits.replace(norm, [add], add.outputs[0])
    elif len(product.inputs) > _OPERANDS and product.inputs[_OPERANDS] is not None:
        stored.replace(product, _OPERANDS, folding.bias)
        _take_over(norm, product)
    else:
        product.resize_inputs(_OPERANDS + 1)
        product.replace_input_with(_OPERANDS, stored.add(product.outputs[0], "bias", folding.bias, product))
        _take_over(norm, product)
    for value in parameters:
        stored.forget(value)


def _take_over(norm: ir.Node, product: ir.Node) -> None:
    """Removes a BatchNormalization: the product makes the value that it made."""
    before, value = product.outputs[0], norm.outputs[0]
    before.metadata_props.update(value.metadata_props)
    before.doc_string = value.doc_string or before.doc_string
    graph_edits.replace(norm, [], before)
