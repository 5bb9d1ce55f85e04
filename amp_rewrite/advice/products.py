"""The dimensions of products that Tensor Cores look at, operator by operator, and what their sizes cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.flops.contrib_shapes import attribute
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB

Size = int | None
"""The size of a dimension; None where it is open or not known."""

Shape = tuple[Size, ...]
ShapeOf = Callable[[ir.Value | None], Shape | None]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a product costs, up to a factor that its dimensions do not change: operations, and bytes of its
    second operand (the weights, where there are any).
    """

    flops: int
    bytes: int


Sizes = Callable[[str, Size], int]
"""Told the name and the size of a dimension, gives the size to count with."""


class _Ports:
    def __init__(self, node: ir.Node, shape_of: ShapeOf) -> None:
        self.node = node
        self._shape_of = shape_of

    def read(self, port: int, rank: int) -> Shape:
        """The shape of an input, its last `rank` dimensions at least; what is not known is None."""
        value = self.node.inputs[port] if port < len(self.node.inputs) else None
        shape = self._shape_of(value)
        return shape if shape is not None else (None,) * rank

    def has(self, port: int) -> bool:
        return port < len(self.node.inputs) and self.node.inputs[port] is not None


Formula = Callable[[_Ports, Sizes], Cost]


def cost(node: ir.Node, shape_of: ShapeOf, sizes: Sizes) -> Cost | None:
    """What a product costs with its dimensions as `sizes` counts them; None for what is no such product."""
    formula = _FORMULAS.get((node.domain, node.op_type))
    return None if formula is None else formula(_Ports(node, shape_of), sizes)


def is_product(node: ir.Node) -> bool:
    """Whether a node is one of the products that are looked at."""
    return (node.domain, node.op_type) in _FORMULAS


def _matrices(rows: Size, inner: Size, columns: Size, sizes: Sizes) -> Cost:
    m, k, n = sizes("rows", rows), sizes("inner dimension", inner), sizes("columns", columns)
    return Cost(m * k * n, k * n)


def _matmul(ports: _Ports, sizes: Sizes) -> Cost:
    """M x K times K x N; with a vector for one of the two it is no work for Tensor Cores."""
    a, b = ports.read(0, 2), ports.read(1, 2)
    if (
        len(a) < 2
        or len(b) < 2
        or attribute(ports.node, "transBatchA")
        or attribute(ports.node, "transBatchB")
    ):
        return Cost(1, 1)
    rows, inner = _turned(a, attribute(ports.node, "transA"))
    return _matrices(rows, inner, _turned(b, attribute(ports.node, "transB"))[1], sizes)


def _turned(shape: Shape, transposed: int) -> Shape:
    return (shape[-1], shape[-2]) if transposed else shape[-2:]


def _packed(ports: _Ports, sizes: Sizes) -> Cost:
    """Weights packed in blocks: attributes say how large the matrix is."""
    a = ports.read(0, 2)
    rows = a[-2] if len(a) > 1 else 1
    return _matrices(rows, attribute(ports.node, "K"), attribute(ports.node, "N"), sizes)


def _convolution(ports: _Ports, sizes: Sizes) -> Cost:
    """W is M x C/group x kernel. A filter for each channel alone (C/group = 1) is no matrix product."""
    out, inside = ports.read(1, 2)[:2]
    return _channels(inside, _share(out, attribute(ports.node, "group", 1)), sizes)


def _transposed(ports: _Ports, sizes: Sizes) -> Cost:
    """W is C x M/group x kernel."""
    inside, out = ports.read(1, 2)[:2]
    return _channels(_share(inside, attribute(ports.node, "group", 1)), out, sizes)


def _channels(inside: Size, out: Size, sizes: Sizes) -> Cost:
    if inside == 1 and out == 1:
        return Cost(1, 1)
    both = sizes("input channels", inside) * sizes("output channels", out)
    return Cost(both, both)


def _share(size: Size, parts: int) -> Size:
    return None if size is None else size // max(parts, 1)


def _recurrent(ports: _Ports, sizes: Sizes) -> Cost:
    """W is directions x gates * hidden x input, R the same with hidden for input; X has the batch second."""
    batch = ports.read(0, 3)
    held = attribute(ports.node, "hidden_size")
    hidden = sizes("hidden size", held or ports.read(2, 3)[-1])
    both = hidden * (sizes("input size", ports.read(1, 3)[-1]) + hidden)
    return Cost(sizes("batch", batch[1 - attribute(ports.node, "layout")]) * both, both)


def _heads(ports: _Ports, sizes: Sizes) -> Cost:
    """Attention on queries by head (4D, or 5D packed with keys and values) or side by side (3D)."""
    query = ports.read(0, 3)
    width, by_head = query[-1], len(query) > 3
    heads = attribute(ports.node, "num_heads") or attribute(ports.node, "q_num_heads", 1)
    size = sizes("head size", width if by_head else _share(width, heads))
    return Cost(size, size)


def _grouped(ports: _Ports, sizes: Sizes) -> Cost:
    """GroupQueryAttention: without a key, query, key and value are side by side in the first input."""
    heads, kept = attribute(ports.node, "num_heads", 1), attribute(ports.node, "kv_num_heads")
    size = sizes("head size", _share(ports.read(0, 3)[-1], heads if ports.has(1) else heads + 2 * kept))
    return Cost(size, size)


def _projected(ports: _Ports, sizes: Sizes) -> Cost:
    """com.microsoft Attention: W is input x (Q, K and V side by side), each of all heads."""
    weights = ports.read(1, 2)
    heads = attribute(ports.node, "num_heads", 1)
    both = sizes("input size", weights[0]) * sizes("head size", _share(weights[1], 3 * heads))
    return Cost(both, both)


_ONNX: Mapping[str, Formula] = {
    "MatMul": _matmul,
    "Gemm": _matmul,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": _heads,
}
_CONTRIB: Mapping[str, Formula] = {
    "FusedMatMul": _matmul,
    "FusedMatMulActivation": _matmul,
    "TransposeMatMul": _matmul,
    "FusedGemm": _matmul,
    "GemmFastGelu": _matmul,
    "MatMulNBits": _packed,
    "MatMulBnb4": _packed,
    "FusedConv": _convolution,
    "NhwcConv": _convolution,
    "NhwcFusedConv": _convolution,
    "Attention": _projected,
    "MultiHeadAttention": _heads,
    "DecoderMaskedMultiHeadAttention": _heads,
    "GroupQueryAttention": _grouped,
}
_FORMULAS: Mapping[tuple[str, str], Formula] = {
    **{("", name): formula for name, formula in _ONNX.items()},
    **{(CONTRIB, name): formula for name, formula in _CONTRIB.items()},
}
