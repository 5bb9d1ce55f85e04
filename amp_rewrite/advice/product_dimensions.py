"""The dimensions of products that matter to Tensor Cores, by operator, and the cost for given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB

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
    batched = schema.integer(ports.node, "transBatchA") or schema.integer(ports.node, "transBatchB")
    if len(a) < 2 or len(b) < 2 or batched:
        return Cost(1, 1)
    rows, inner = (a[-1], a[-2]) if schema.integer(ports.node, "transA") else a[-2:]
    return _matrices(rows, inner, b[-2 if schema.integer(ports.node, "transB") else -1], sizes)


def _packed(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """Block-quantised weights: the attributes K and N are the dimensions of the matrix."""
    a = ports.read(0, 2)
    rows = a[-2] if len(a) > 1 else 1
    return _matrices(rows, schema.integer(ports.node, "K"), schema.integer(ports.node, "N"), sizes)


def _convolution(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """W is M x C/group x kernel; a depthwise convolution (C/group = 1) is not a matrix product."""
    out, inside = ports.read(1, 2)[:2]
    return _channels(inside, _share(out, schema.integer(ports.node, "group", 1)), sizes)


def _transposed(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """W is C x M/group x kernel."""
    inside, out = ports.read(1, 2)[:2]
    return _channels(_share(inside, schema.integer(ports.node, "group", 1)), out, sizes)


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
    held = schema.integer(ports.node, "hidden_size")
    hidden = sizes("hidden size", held or ports.read(2, 3)[-1])
    both = hidden * (sizes("input size", ports.read(1, 3)[-1]) + hidden)
    return Cost(sizes("batch", batch[1 - schema.integer(ports.node, "layout")]) * both, both)


def _heads(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """Attention on queries split by head (4D, or 5D packed with keys and values) or with all heads (3D)."""
    query = ports.read(0, 3)
    width, by_head = query[-1], len(query) > 3
    heads = schema.integer(ports.node, "num_heads") or schema.integer(ports.node, "q_num_heads", 1)
    size = sizes("head size", width if by_head else _share(width, heads))
    return Cost(size, size)


def _grouped(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """GroupQueryAttention: without a key input, the first input holds query, key and value."""
    heads = schema.integer(ports.node, "num_heads", 1)
    kept = schema.integer(ports.node, "kv_num_heads")
    has_key = len(ports.node.inputs) > 1 and ports.node.inputs[1] is not None
    size = sizes("head size", _share(ports.read(0, 3)[-1], heads if has_key else heads + 2 * kept))
    return Cost(size, size)


def _projected(ports: _OperandShapes, sizes: ChosenSize) -> Cost:
    """com.microsoft Attention: W is input x (Q, K and V with all heads)."""
    weights = ports.read(1, 2)
    heads = schema.integer(ports.node, "num_heads", 1)
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
