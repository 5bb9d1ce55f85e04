"""Operands of matrix products in which onnxruntime absorbs a Transpose of the first axis.

Its MatmulTransposeFusion (onnxruntime/core/optimizer/matmul_transpose_fusion.cc) absorbs a Transpose, also
one behind a Cast, in the product that reads it. Where the Transpose moves the first axis, it does so only if
both operands are known to have the same rank. Otherwise, it has already swapped Transpose and Cast, and
leaves a Cast without a kernel: the CPU provider crashes, the CUDA provider rejects the model
(seen with onnxruntime 1.31.1 and 1.32.0). Before that, onnxruntime merges consecutive Transposes, moves them
past other operators, and removes no-ops.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators.record import Role, Trait


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
    steps = [(node.outputs[0], _moves_first(node)) for node in nodes if _turns(node) and not _is_folded(node)]
    visited: dict[tuple[ir.Value, bool], None] = {}
    while steps:
        step = value, is_moved = steps.pop()
        if step in visited:
            continue
        visited[step] = None
        for node, port in value.uses():
            if carries(node, port):
                moves = is_moved or _moves_first(node) or _changes_axes(node)
                steps.extend((output, moves) for output in node.outputs)
    return dict.fromkeys(value for value, is_moved in visited if is_moved)


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
        if _turns(node) and (order := _perm(node)):
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


def _turns(node: ir.Node) -> bool:
    """Return whether a node is a Transpose."""
    return node.op_type == "Transpose" and node.domain == "" and len(node.outputs) == 1


def _is_folded(transpose: ir.Node) -> bool:
    """Return whether a Transpose reads a constant that no caller can override, also through Casts."""
    value = next(iter(transpose.inputs), None)
    while value is not None and constants.stored_as(value) is None:
        node = value.producer()
        if node is None or node.op_type not in ("Cast", "Identity") or node.domain:
            return False
        value = next(iter(node.inputs), None)
    return value is not None and not value.is_graph_input()


def _moves_first(node: ir.Node) -> bool:
    """Return whether a Transpose moves the first axis; without `perm` it reverses them all."""
    return _turns(node) and next(iter(_perm(node)), -1) != 0


def _perm(node: ir.Node) -> tuple[int, ...]:
    """Return the permutation of a Transpose; empty if it is missing or invalid."""
    order = tuple(schema.integers(node, "perm"))
    return order if sorted(order) == list(range(len(order))) else ()


def _shape(value: ir.Value | None) -> ir.ShapeProtocol | None:
    tensor = constants.stored_as(value)
    source = tensor if tensor is not None else value
    return source.shape if source is not None else None
