"""Raises the rank of a constant weight to that of the data if the data passes through a Transpose.

onnxruntime absorbs a Transpose of the first axis only if both operands have the same rank, and fails
otherwise (model.transposed_operands). A matrix `[K, N]` as `[1, ..., 1, K, N]` gives the same product: no
node is added. A weight with other readers keeps its rank, and its product stays float32 (analysis.runtimes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.model import constants, graph_edits, traversal
from amp_rewrite.model.constants import StoredTensor
from amp_rewrite.model.transposed_operands import Product, find_products, find_transposed, rank
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind


def raise_ranks(model: ir.Model, types: Types) -> tuple[FormChange, ...]:
    """Raise constant float32 weights to the rank of the data.

    The output of a Transpose without a shape is declared with open dimensions, since onnxruntime must know
    its rank.
    """
    transposed = find_transposed(traversal.every_node(model.graph))
    _declare(transposed, types)
    products: dict[ir.Value | None, list[Product]] = {}
    for product in find_products(transposed):
        products.setdefault(product.node.inputs[1 - product.port], []).append(product)
    return tuple(_raised(constants.find(model), products)) if products else ()


def _declare(transposed: Iterable[ir.Value], types: Types) -> None:
    """Declare the rank of the outputs of Transposes, where the model does not."""
    for value in transposed:
        node = value.producer()
        if value.shape is None and node is not None and type(types.get(value)) is ir.TensorType:
            axes = rank(value) if node.op_type == "Transpose" else None
            if axes is not None:
                value.type, value.shape = types[value], ir.Shape([None] * axes)


_MATRIX = 2
"""The least rank that may be raised: the product with a vector drops an axis."""
_MOST = 8
"""The largest rank for which onnxruntime's CUDA provider has a Transpose kernel."""


def _raised(
    tensors: Mapping[ir.Value, StoredTensor], products: Mapping[ir.Value | None, list[Product]]
) -> Iterator[FormChange]:
    for weight, readers in products.items():
        constant = None if weight is None else tensors.get(weight)
        ranks = {(product.ranks[1 - product.port], product.ranks[product.port]) for product in readers}
        if constant is None or len(ranks) > 1 or constant.value.is_graph_output():
            continue
        ((before, after),) = ranks
        is_shared = {use.node for use in constant.value.uses()} != {product.node for product in readers}
        if before and after and _MATRIX <= before < after <= _MOST and not is_shared:
            shape = [1] * (after - before) + [int(size) for size in constant.tensor.shape.numpy()]
            constant.value.shape = ir.Shape(shape)
            graph_edits.store(constant, reshaped(constant.tensor, shape))
            name = pinned_as(readers[0].node)
            yield FormChange(FormChangeKind.RANK, name, before=before, after=after)


def reshaped(tensor: ir.TensorProtocol, shape: Sequence[int]) -> ir.TensorProtocol:
    """Return `tensor` with the same values in this shape; an external tensor stays so, and is not read."""
    if not isinstance(tensor, ir.ExternalTensor):
        return ir.Tensor(constants.numbers(tensor).reshape(shape), dtype=tensor.dtype, name=tensor.name)
    place = tensor.location, tensor.offset, tensor.length, tensor.dtype
    return ir.ExternalTensor(*place, shape=ir.Shape(shape), name=tensor.name or "", base_dir=tensor.base_dir)
