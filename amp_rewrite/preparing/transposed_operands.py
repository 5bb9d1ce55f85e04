"""Operands of matrix products in which onnxruntime absorbs a Transpose of the first axis.

Its MatmulTransposeFusion (onnxruntime/core/optimizer/matmul_transpose_fusion.cc) absorbs a Transpose, also
one behind a Cast, in the product that reads it. Where the Transpose moves the first axis, it does so only if
both operands are known to have the same rank. Otherwise, it has already swapped Transpose and Cast, and
leaves a Cast without a kernel: the CPU provider crashes, the CUDA provider rejects the model
(seen with onnxruntime 1.31.1 and 1.32.0). Before that, onnxruntime merges consecutive Transposes, moves them
past other operators, and removes no-ops.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model import constants, graph_edits, patterns, traversal
from amp_rewrite.model.constants import StoredTensor
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators.record import Role, Trait
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product with the transposed `operand` at a port; `ranks` are those of both operands."""

    node: ir.Node
    port: int
    operand: ir.Value
    ranks: tuple[int | None, int | None]

    @property
    def is_fused(self) -> bool:
        """Return whether onnxruntime can absorb the Transpose."""
        left, right = self.ranks
        return left is not None and left == right


def find_transposed(nodes: Iterable[ir.Node]) -> Collection[ir.Value]:
    """Return the values that are, or may become, the output of a Transpose that moves the first axis.

    Not of a constant: onnxruntime folds such a Transpose before it absorbs others.
    """
    transposes = (node for node in nodes if patterns.is_default(node, "Transpose") and not _is_folded(node))

    def following(step: tuple[ir.Value, bool]) -> Iterator[tuple[ir.Value, bool]]:
        value, is_moved = step
        for node, port in value.uses():
            if carries(node, port):
                moves = is_moved or _moves_first(node) or _changes_axes(node)
                yield from ((output, moves) for output in node.outputs)

    steps = traversal.reach(((node.outputs[0], _moves_first(node)) for node in transposes), following)
    return dict.fromkeys(value for value, is_moved in steps if is_moved)


def find_products(transposed: Iterable[ir.Value]) -> Iterator[Product]:
    """Yield the matrix products that read one of these values, in no order."""
    for value in transposed:
        for node, port in value.uses():
            if node.op_type in _PRODUCTS.get(node.domain, ()) and port < _OPERANDS <= len(node.inputs):
                yield Product(node, port, value, (rank(node.inputs[0]), rank(node.inputs[1])))


def rank(value: ir.Value | None) -> int | None:
    """Return the rank of a value, if its shape or its producers determine it."""
    while value is not None:
        shape, node = _shape(value), value.producer()
        if shape is not None:
            return len(shape)
        if node is None or node.domain:
            return None
        if node.op_type == "Reshape":
            return _number_of_sizes(node)
        if patterns.is_default(node, "Transpose") and (order := _perm(node)):
            return len(order)
        record = record_of(node)
        value = node.inputs[0] if record.move and record.traits & Trait.KEEPS_RANK else None
    return None


def sources(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the operands of a value's producer from which a Transpose may have moved here."""
    node = value.producer()
    for port, operand in enumerate(node.inputs if node is not None else ()):
        if node is not None and operand is not None and carries(node, port):
            yield operand


_PRODUCTS = {"": ("MatMul",), "com.microsoft": ("FusedMatMul",)}
_OPERANDS = 2


def _changes_axes(node: ir.Node) -> bool:
    """Return whether a node removes or adds axes, so that the second axis may become the first."""
    record = record_of(node)
    return bool(record.ports(Role.AXES)) and not record.traits & Trait.KEEPS_RANK


def carries(node: ir.Node, port: int) -> bool:
    """Return whether a Transpose before this input may be moved behind the node."""
    if node.domain:
        return False
    record = record_of(node)
    if record.traits & (Trait.ADDS | Trait.SCALES):
        shape = _shape(node.inputs[1 - port]) if len(node.inputs) == _OPERANDS else None
        return shape is not None and all(size == 1 for size in shape)
    if node.op_type == "Reshape" and port == 0:
        before, after = rank(node.inputs[0]), {rank(node.outputs[0]), _number_of_sizes(node)} - {None}
        return before is None or after <= {before}
    return bool(record.traits & Trait.TURNS) and port in record.carries


def _number_of_sizes(reshape: ir.Node) -> int | None:
    """Return the rank of a Reshape's output: the length of its shape input."""
    shape = _shape(reshape.inputs[1]) if len(reshape.inputs) > 1 else None
    count = shape[0] if shape is not None and len(shape) == 1 else None
    return count if isinstance(count, int) else None


def _is_folded(transpose: ir.Node) -> bool:
    """Return whether a Transpose reads a constant that no caller can override, also through Casts."""
    values = [patterns.origin(value) for value in transpose.inputs if value is not None]
    return any(constants.stored_as(value) is not None and not value.is_graph_input() for value in values)


def _moves_first(node: ir.Node) -> bool:
    """Return whether a Transpose moves the first axis; without `perm` it reverses them all."""
    return patterns.is_default(node, "Transpose") and next(iter(_perm(node)), -1) != 0


def _perm(node: ir.Node) -> tuple[int, ...]:
    """Return the permutation of a Transpose; empty if it is missing or invalid."""
    order = tuple(schema.integers(node, "perm"))
    return order if sorted(order) == list(range(len(order))) else ()


def _shape(value: ir.Value | None) -> ir.ShapeProtocol | None:
    tensor = constants.stored_as(value)
    source = tensor if tensor is not None else value
    return source.shape if source is not None else None


# A constant weight gets the rank of the data: a matrix `[K, N]` as `[1, ..., 1, K, N]` gives the same
# product, and no node is added. A weight with other readers keeps its rank, and its product stays float32
# (analysis.runtimes).


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
