"""Raises the rank of a constant weight to that of the data if the data passes through a Transpose.

onnxruntime absorbs a Transpose of the first axis only if both operands have the same rank, and fails
otherwise (model.transposed_operands). A matrix `[K, N]` as `[1, ..., 1, K, N]` gives the same product: no
node is added, and no data is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from amp_rewrite.model import constants, graph_edits, traversal
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW, StoredTensor
from amp_rewrite.model.transposed_operands import Product, find_products, find_transposed, rank
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind


def raise_ranks(model: ir.Model, types: Types) -> tuple[FormChange, ...]:
    """Raise constant float32 weights to the rank of the data; adds copies to `types`.

    A weight with other consumers is copied. The output of a Transpose without a shape is declared with open
    dimensions, since onnxruntime must know its rank.
    """
    nodes = traversal.nodes(model.graph)
    transposed = find_transposed(node for inner in nodes.values() for node in inner)
    if not transposed:
        return ()
    _declare(transposed, types)
    tensors = constants.find(model)
    weights: dict[tuple[ir.Value, int], list[Product]] = {}
    for product in find_products(transposed):
        weight = product.node.inputs[1 - product.port]
        before, after = product.ranks[1 - product.port], product.ranks[product.port]
        if weight in tensors and before and after and _MATRIX <= before < after <= _MOST:
            weights.setdefault((weight, after), []).append(product)
    raiser = _Raiser(model, types, UniqueNames(nodes if weights else ()))
    return tuple(
        raiser.change(tensors[weight], after, products) for (weight, after), products in weights.items()
    )


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


class _Raiser:
    def __init__(self, model: ir.Model, types: Types, names: UniqueNames) -> None:
        self._types, self._names = types, names
        self._listed = model.ir_version < CONSTANT_INPUTS_BELOW

    def change(self, constant: StoredTensor, rank: int, products: Sequence[Product]) -> FormChange:
        """Raise the rank of a weight for these products: in place if it has no other consumer."""
        before = len(constant.tensor.shape)
        shape = [1] * (rank - before) + [int(size) for size in constant.tensor.shape.numpy()]
        product_ports = {(product.node, 1 - product.port) for product in products}
        uses = {(use.node, use.idx) for use in constant.value.uses()}
        if uses <= product_ports and not constant.value.is_graph_output():
            constant.value.shape = ir.Shape(shape)
            graph_edits.store(constant, reshaped(constant.tensor, shape, constant.tensor.name))
        else:
            copy = self._copied(constant, shape, rank)
            for node, port in product_ports:
                node.replace_input_with(port, copy)
        name = pinned_as(products[0].node)
        return FormChange(FormChangeKind.RANK, name, before=before, after=rank)

    def _copied(self, constant: StoredTensor, shape: Sequence[int], rank: int) -> ir.Value:
        """Add a copy of the constant with another shape."""
        name = self._names.of_value(constant.value, f"rank{rank}")
        tensor, graph = reshaped(constant.tensor, shape, name), graph_edits.graph_of(constant.value)
        if constant.node is None:
            copy = ir.Value(name=name, const_value=tensor)
            graph_edits.register(copy, graph, as_input=self._listed)
        else:
            value = ir.AttrTensor("value", tensor)
            node = ir.Node("", "Constant", [], [value], name=self._names.of_node(name))
            copy = node.outputs[0]
            copy.name = name
            graph.insert_after(constant.node, node)
        copy.type, copy.shape = self._types[constant.value], ir.Shape(shape)
        self._types[copy] = self._types[constant.value]
        return copy


def reshaped(tensor: ir.TensorProtocol, shape: Sequence[int], name: str | None) -> ir.TensorProtocol:
    """Return `tensor` with the same values in this shape; an external tensor stays external."""
    dimensions, metadata = ir.Shape(shape), dict(tensor.metadata_props)
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=dimensions,
            name=name or "",
            doc_string=tensor.doc_string,
            metadata_props=metadata,
            base_dir=tensor.base_dir,
        )

    def values() -> ir.TensorProtocol:
        return ir.Tensor(constants.numbers(tensor).reshape(shape), dtype=tensor.dtype, name=name)

    return ir.LazyTensor(
        values, tensor.dtype, dimensions, name=name, doc_string=tensor.doc_string, metadata_props=metadata
    )
