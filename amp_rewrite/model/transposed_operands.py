"""The operands of matrix products before which onnxruntime finds a Transpose of the first axis.

Its MatmulTransposeFusion (onnxruntime/core/optimizer/matmul_transpose_fusion.cc) absorbs a Transpose, also
one behind a Cast, in the product that reads it. Where the Transpose moves the first axis, it does so only if
both operands are known to have the same rank. Where they have not, it has already exchanged Transpose and
Cast, and leaves a Cast that has no kernel: the CPU provider crashes, the CUDA provider refuses the model
(seen with onnxruntime 1.31.1 and 1.32.0). Before that, onnxruntime merges consecutive Transposes, moves them
past other operators, and removes what does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.onnx_types import schema

Ranks = Mapping[ir.Value, int | None]
"""Values, each with its number of axes; None where it is unknown."""


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product that reads the transposed `operand` by a port; `ranks` are those of both operands."""

    node: ir.Node
    port: int
    operand: ir.Value
    ranks: tuple[int | None, int | None]

    @property
    def is_fused(self) -> bool:
        """Whether onnxruntime can absorb the Transpose."""
        left, right = self.ranks
        return left is not None and left == right

    @property
    def other(self) -> ir.Value | None:
        """The operand that is read by the other port."""
        return self.node.inputs[1 - self.port]


def transposed(nodes: Iterable[ir.Node]) -> Ranks:
    """The values that are, or may become, the output of a Transpose that moves the first axis.

    A Transpose of a stored value is none of them: onnxruntime folds it before it looks for any to absorb.
    """
    found: dict[ir.Value, int | None] = {}
    kept: dict[ir.Value, int | None] = {}
    waiting = [
        _Step(node.outputs[0], turned_rank(node), _moves_first(node))
        for node in nodes
        if _turns(node) and not _is_folded(node)
    ]
    while waiting:
        step = waiting.pop()
        seen = found if step.moved else kept
        if step.value not in seen:
            seen[step.value] = step.rank
            waiting.extend(_next(step))
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    """A value, its rank, and whether the first axis may have moved on the way."""

    value: ir.Value
    rank: int | None
    moved: bool


def products(ranks: Ranks) -> Iterator[Product]:
    """The matrix products that read one of these values, in no order."""
    for value in ranks:
        for node, port in value.uses():
            if node.op_type in _PRODUCTS.get(node.domain, ()) and port < _OPERANDS <= len(node.inputs):
                left, right = (rank(operand, ranks) for operand in node.inputs[:_OPERANDS])
                yield Product(node, port, value, (left, right))


def rank(value: ir.Value | None, ranks: Ranks) -> int | None:
    """The number of axes of a value, as far as it is stored, declared or among `ranks`."""
    shape = _shape(value)
    return len(shape) if shape is not None else ranks.get(value) if value is not None else None


def sources(value: ir.Value) -> Iterator[ir.Value]:
    """The values from which a Transpose may have come to this one."""
    node = value.producer()
    for port, read in enumerate(node.inputs if node is not None else ()):
        if node is not None and read is not None and carries(node, port):
            yield read


_PRODUCTS = {"": ("MatMul",), "com.microsoft": ("FusedMatMul",)}
_OPERANDS = 2
_SCALES = frozenset("Add Div Mul Sub".split())
_ALL = frozenset("Concat Max Min".split())
_SAME_RANK = frozenset("Cast Dropout Identity Pad Slice Split Tile Transpose".split())
_FIRST = frozenset("Expand ReduceMax ReduceMin Reshape Squeeze Unsqueeze".split()) | _SAME_RANK
"""Operators that onnxruntime removes or moves Transposes past: of any input (_ALL), or of the first."""


def carries(node: ir.Node, port: int) -> bool:
    """Whether a Transpose before this input may end up behind the node."""
    if node.domain:
        return False
    if node.op_type in _SCALES:
        shape = _shape(node.inputs[1 - port]) if len(node.inputs) == _OPERANDS else None
        return shape is not None and all(size == 1 for size in shape)
    return node.op_type in _ALL or (node.op_type in _FIRST and port == 0)


def _next(step: _Step) -> Iterator[_Step]:
    for node, port in step.value.uses():
        if carries(node, port) and not _is_reshaped(node, step.rank):
            moved = step.moved or _moves_first(node) or node.op_type in _AXES
            yield from (_Step(made, _next_rank(node, made, step.rank), moved) for made in node.outputs)


_AXES = frozenset("ReduceMax ReduceMin Squeeze Unsqueeze".split())
"""Operators that take axes away or add some: what was the second may be the first."""


def _next_rank(node: ir.Node, made: ir.Value, before: int | None) -> int | None:
    """The rank of an output, as far as it is known."""
    shape = _shape(made)
    if shape is not None:
        return len(shape)
    if _turns(node):
        return turned_rank(node) or before
    if node.op_type in _AXES or before is None:
        return _rank_of_axes(node, before)
    if node.op_type == "Reshape":
        return _number_of_sizes(node)
    others = [len(other) for value in node.inputs if (other := _shape(value)) is not None]
    return max(before, *others) if node.op_type in _SCALES | _ALL and others else before


def _rank_of_axes(node: ir.Node, before: int | None) -> int | None:
    count = _number_of_axes(node)
    if before is None or count is None:
        return None
    if node.op_type == "Unsqueeze":
        return before + count
    drops = not schema.integer(node, "keepdims", 1)
    return before - count if drops or node.op_type == "Squeeze" else before


def _number_of_axes(node: ir.Node) -> int | None:
    said = node.attributes.get("axes")
    if said is not None:
        return None if said.is_ref() or said.type != ir.AttributeType.INTS else len(said.as_ints())
    sizes = _shape(node.inputs[1]) if len(node.inputs) > 1 else None
    size = sizes[0] if sizes is not None and len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def _is_reshaped(node: ir.Node, before: int | None) -> bool:
    """Whether a node is a Reshape to another rank, which no Transpose passes."""
    if node.op_type != "Reshape" or before is None:
        return False
    made = _shape(node.outputs[0])
    ranks = (None if made is None else len(made), _number_of_sizes(node))
    return any(rank is not None and rank != before for rank in ranks)


def _number_of_sizes(reshape: ir.Node) -> int | None:
    """The rank that a Reshape gives: how many sizes it is asked for."""
    asked = _shape(reshape.inputs[1]) if len(reshape.inputs) > 1 else None
    count = asked[0] if asked is not None and len(asked) == 1 else None
    return count if isinstance(count, int) else None


def _turns(node: ir.Node) -> bool:
    """Whether a node is a Transpose."""
    return node.op_type == "Transpose" and node.domain == "" and len(node.outputs) == 1


def _is_folded(transpose: ir.Node) -> bool:
    """Whether a Transpose reads a stored value that no caller can replace, as it is or through Casts."""
    value = next(iter(transpose.inputs), None)
    while value is not None and constants.stored_as(value) is None:
        node = value.producer()
        if node is None or node.op_type not in ("Cast", "Identity") or node.domain:
            return False
        value = next(iter(node.inputs), None)
    return value is not None and not value.is_graph_input()


def _moves_first(node: ir.Node) -> bool:
    """Whether a Transpose moves the first axis; without `perm` it reverses them all."""
    return _turns(node) and next(iter(_perm(node)), -1) != 0


def turned_rank(node: ir.Node) -> int | None:
    """The rank of what a Transpose gives: that of its permutation, or as declared; None if it is unknown."""
    shape = _shape(node.outputs[0])
    return len(_perm(node)) or (None if shape is None else len(shape))


def _perm(node: ir.Node) -> tuple[int, ...]:
    """The permutation of a Transpose; empty if it is missing or invalid."""
    order = tuple(schema.integers(node, "perm"))
    return order if sorted(order) == list(range(len(order))) else ()


def _shape(value: ir.Value | None) -> ir.ShapeProtocol | None:
    tensor = constants.stored_as(value)
    held = tensor if tensor is not None else value
    return held.shape if held is not None else None
