"""Products in half whose dimensions Tensor Cores handle less efficiently, and the cost of padding them.

Since cuBLAS 11.0 and cuDNN 7.6.3 Tensor Cores are used for all sizes; they are most efficient where the
dimensions of a product in float16 or bfloat16 are multiples of 8, that is, of 16 bytes (NVIDIA, Matrix
Multiplication Background User's Guide, "Tensor Core Requirements"; Convolutional Layers User's Guide;
Recurrent Layers User's Guide). Earlier versions did not use them for other sizes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.flops import shapes
from amp_rewrite.flops.shapes import FlopCount
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_types import attributes, schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.policy.node_patterns import pinned_as

# The dimensions of products that matter to Tensor Cores, by operator, and the cost for given sizes.

Size = int | None
"""The size of a dimension; None where it is open or unknown."""

KnownShape = tuple[Size, ...]
ShapeOf = Callable[[ir.Value | None], KnownShape | None]


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of a product and bytes of its second operand (the weights, if any), up to a constant factor."""

    flops: int
    bytes: int


ChosenSize = Callable[[str, Size], int]
"""Maps the name and the size of a dimension to the size to count with."""


class _OperandShapes:
    def __init__(self, node: ir.Node, shape_of: ShapeOf) -> None:
        self.node = node
        self._shape_of = shape_of

    def read(self, port: int, rank: int) -> KnownShape:
        """The shape of an input; where it is unknown, `rank` unknown dimensions."""
        value = self.node.inputs[port] if port < len(self.node.inputs) else None
        shape = self._shape_of(value)
        return shape if shape is not None else (None,) * rank


CostFormula = Callable[[_OperandShapes, ChosenSize], Cost]


def cost(node: ir.Node, shape_of: ShapeOf, sizes: ChosenSize) -> Cost | None:
    """The cost of a product with its dimensions sized by `sizes`; None for any other operator."""
    formula = _FORMULAS.get((node.domain, node.op_type))
    return None if formula is None else formula(_OperandShapes(node, shape_of), sizes)


def _matrices(rows: Size, inner: Size, columns: Size, sizes: ChosenSize) -> Cost:
    m, k, n = sizes("rows", rows), sizes("inner dimension", inner), sizes("columns", columns)
    return Cost(m * k * n, k * n)


def _matmul(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """M x K times K x N; a product with a vector does not use Tensor Cores."""
    a, b = ports.read(0, 2), ports.read(1, 2)
    batched = attributes.integer(ports.node, "transBatchA") or attributes.integer(ports.node, "transBatchB")
    if len(a) < 2 or len(b) < 2 or batched:
        return Cost(1, 1)
    rows, inner = (a[-1], a[-2]) if attributes.integer(ports.node, "transA") else a[-2:]
    return _matrices(rows, inner, b[-2 if attributes.integer(ports.node, "transB") else -1], sizes)


def _packed(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """Block-quantised weights: the attributes K and N are the dimensions of the matrix."""
    a = ports.read(0, 2)
    rows = a[-2] if len(a) > 1 else 1
    return _matrices(rows, attributes.integer(ports.node, "K"), attributes.integer(ports.node, "N"), sizes)


def _convolution(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """W is M x C/group x kernel; a depthwise convolution (C/group = 1) is not a matrix product."""
    out, inside = ports.read(1, 2)[:2]
    return _channels(inside, _share(out, attributes.integer(ports.node, "group", 1)), sizes)


def _transposed(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """W is C x M/group x kernel."""
    inside, out = ports.read(1, 2)[:2]
    return _channels(_share(inside, attributes.integer(ports.node, "group", 1)), out, sizes)


def _channels(inside: Size, out: Size, sizes: ChosenSize) -> Cost:
    if inside == 1 and out == 1:
        return Cost(1, 1)
    both = sizes("input channels", inside) * sizes("output channels", out)
    return Cost(both, both)


def _share(size: Size, parts: int) -> Size:
    return None if size is None else size // max(parts, 1)


def _recurrent(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """W is directions x gates * hidden x input, R the same with hidden for input; X has the batch second."""
    batch = ports.read(0, 3)
    held = attributes.integer(ports.node, "hidden_size")
    hidden = sizes("hidden size", held or ports.read(2, 3)[-1])
    both = hidden * (sizes("input size", ports.read(1, 3)[-1]) + hidden)
    return Cost(sizes("batch", batch[1 - attributes.integer(ports.node, "layout")]) * both, both)


def _heads(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """Attention on queries split by head (4D, or 5D packed with keys and values) or with all heads (3D)."""
    query = ports.read(0, 3)
    width, by_head = query[-1], len(query) > 3
    heads = attributes.integer(ports.node, "num_heads") or attributes.integer(ports.node, "q_num_heads", 1)
    size = sizes("head size", width if by_head else _share(width, heads))
    return Cost(size, size)


def _grouped(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """GroupQueryAttention: without a key input, the first input holds query, key and value."""
    heads = attributes.integer(ports.node, "num_heads", 1)
    kept = attributes.integer(ports.node, "kv_num_heads")
    has_key = len(ports.node.inputs) > 1 and ports.node.inputs[1] is not None
    size = sizes("head size", _share(ports.read(0, 3)[-1], heads if has_key else heads + 2 * kept))
    return Cost(size, size)


def _projected(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """com.microsoft Attention: W is input x (Q, K and V with all heads)."""
    weights = ports.read(1, 2)
    heads = attributes.integer(ports.node, "num_heads", 1)
    both = sizes("input size", weights[0]) * sizes("head size", _share(weights[1], 3 * heads))
    return Cost(both, both)


_ONNX: Mapping[str, CostFormula] = {
    "MatMul": _matmul,
    "Gemm": _matmul,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Attention": _heads,
}
_MATMULS = "FusedMatMul FusedMatMulActivation TransposeMatMul FusedGemm GemmFastGelu".split()
_CONTRIB: Mapping[str, CostFormula] = {
    **dict.fromkeys(_MATMULS, _matmul),
    "MatMulNBits": _packed,
    "MatMulBnb4": _packed,
    **dict.fromkeys(("FusedConv", "NhwcConv", "NhwcFusedConv"), _convolution),
    "Attention": _projected,
    "MultiHeadAttention": _heads,
    "DecoderMaskedMultiHeadAttention": _heads,
    "GroupQueryAttention": _grouped,
}
_FORMULAS: Mapping[tuple[str, str], CostFormula] = {
    **{("", name): formula for name, formula in _ONNX.items()},
    **{(CONTRIB, name): formula for name, formula in _CONTRIB.items()},
}


STEP = 8
"""Dimensions are best in multiples of this many elements of two bytes: 16 bytes (see above)."""

PROBE = 97
"""The size of open dimensions in a second shape inference: a dimension that changes with it is unknown. A
prime, so that sizes computed from it differ from those computed from a size of 1.
"""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension, its size, and the next multiple of 8."""

    name: str
    size: int
    padded: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Products of one operator with the same dimensions to pad.

    `nodes` are the names of the nodes. `flop_share` is their share of the model's FLOPs, from 0 to 1, None
    where unknown. Padding adds `extra_flops` and, to the bytes of their second operands, `extra_bytes`, both
    relative to the present amounts.
    """

    operator: str
    nodes: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    flop_share: float | None
    extra_flops: float
    extra_bytes: float


def find(counted: FlopCount, half: Container[ir.Node]) -> tuple[Padding, ...]:
    """The products among the nodes of `half` that padding would speed up, those with most FLOPs first.

    Dimensions that are open, or computed from open ones, are not examined.
    """
    shape_of = _known_shapes(counted)
    found: dict[Padding, list[ir.Node]] = {}
    for node in every_node(counted.model.graph):
        if node in half and (padding := _padding(node, shape_of)) is not None:
            found.setdefault(padding, []).append(node)
    paddings = (_with_nodes(padding, nodes, counted) for padding, nodes in found.items())
    return tuple(sorted(paddings, key=lambda padding: (-(padding.flop_share or 0), -len(padding.nodes))))


def _padding(node: ir.Node, shape_of: ShapeOf) -> Padding | None:
    """How to pad a node, and the cost, without the node's name; None where there is nothing to pad."""
    found: list[Dimension] = []
    before = cost(node, shape_of, lambda _, size: size or 1)
    after = cost(node, shape_of, _padder(found))
    if before is None or after is None or not found:
        return None
    return Padding(
        operator=schema.written(node.domain, node.op_type),
        nodes=(),
        dimensions=tuple(found),
        flop_share=None,
        extra_flops=after.flops / before.flops - 1,
        extra_bytes=after.bytes / before.bytes - 1,
    )


def _with_nodes(padding: Padding, nodes: list[ir.Node], counted: FlopCount) -> Padding:
    flops = sum(counted.flops.get(node) or 0 for node in nodes)
    share = flops / counted.total if counted.total else None
    return replace(padding, nodes=tuple(map(pinned_as, nodes)), flop_share=share)


def _padder(found: list[Dimension]) -> Callable[[str, Size], int]:
    def padded(name: str, size: Size) -> int:
        if size is None or size <= 1:  # vectors do not use Tensor Cores, padded or not
            return size or 1
        up = -(-size // STEP) * STEP
        if up != size:
            found.append(Dimension(name, size, up))
        return up

    return padded


def _known_shapes(counted: FlopCount) -> ShapeOf:
    """Shapes with None for dimensions that depend on an open one, that is, change with its size."""
    found = counted.shapes
    if not found.assumed:
        return found.of
    dims = {**counted.dims, **dict.fromkeys(found.assumed, PROBE)}
    probed = shapes.infer(counted.model, counted.types, dims)

    def shape_of(value: ir.Value | None) -> KnownShape | None:
        one, other = found.of(value), probed.of(value)
        if one is None or other is None or len(one) != len(other):
            return None
        return tuple(a if a == b else None for a, b in zip(one, other, strict=True))

    return shape_of
