"""FLOPs of one node from the shapes of its inputs and outputs.

One multiply-add is two FLOPs. Products (matrices, convolutions, recurrent cells, attention) are counted by
the formulas below, without fused biases and activations. All others count by element (`Operator.flops`): data
movement nothing; a normalisation, a softmax or an interpolation a small constant; a reduction
one for each element that it reads. Integer arithmetic counts only in quantised products.

We found no library for this: onnx-tool 1.0.1 counts a ConvTranspose of 2,160 multiply-adds as 18,225, fails
on LSTM, and does not know Attention; onnx-opcounter 0.0.4 has to run the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.operators.catalogue import RECURRENT
from amp_rewrite.operators.record import Trait
from amp_rewrite.operators.reductions import INTERPOLATED
from amp_rewrite.preparing.equivalents import MATMULS
from amp_rewrite.preparing.value_sizes import Shape

# The shapes of one node's inputs and outputs, as FLOP formulas use them.


class UnknownShape(Exception):  # noqa: N818 - not an error: the FLOPs of the node are unknown
    """A shape that a formula needs is unknown."""


@dataclass(frozen=True, slots=True)
class PortShapes:
    """The shapes of a node's inputs and outputs; `input` and `output` raise UnknownShape."""

    node: ir.Node
    shape_of: Callable[[ir.Value | None], Shape | None]

    def input(self, port: int) -> Shape:
        """Return the shape of an input."""
        return self._known(self.node.inputs[port] if self.has(port) else None)

    def output(self, port: int = 0) -> Shape:
        """Return the shape of an output."""
        return self._known(self.node.outputs[port] if port < len(self.node.outputs) else None)

    def has(self, port: int) -> bool:
        """Return whether the node has this input."""
        return port < len(self.node.inputs) and self.node.inputs[port] is not None

    def _known(self, value: ir.Value | None) -> Shape:
        shape = self.shape_of(value)
        if shape is None:
            raise UnknownShape
        return shape


Formula = Callable[[PortShapes], int]
"""FLOPs of a node; raises UnknownShape when it needs a shape that is unknown."""


# FLOPs of ONNX's and onnxruntime's attention operators; masked scores count like all others.


def attention(ports: PortShapes) -> int:
    """ai.onnx Attention: the scores and the weighted sum of the values, 2 B H Sq Skv (Dqk + Dv).

    The last axis of a 3D input holds all heads; past keys precede the new ones.
    """
    q, k, v = (ports.input(i) for i in range(3))
    heads = q[1] if len(q) == 4 else schema.integer(ports.node, "q_num_heads")
    kv_heads = k[1] if len(k) == 4 else schema.integer(ports.node, "kv_num_heads")
    queries, length = q[-2], k[-2] + (ports.input(4)[2] if ports.has(4) else 0)
    size = q[-1] if len(q) == 4 else q[-1] // heads
    value = v[-1] if len(v) == 4 else v[-1] // kv_heads
    return 2 * q[0] * heads * queries * length * (size + value)


def projected_attention(past: int) -> Formula:
    """com.microsoft Attention: the product with the weights of Q, K and V, then attention itself."""

    def flops(ports: PortShapes) -> int:
        (batch, length, _), weights = ports.input(0), ports.input(1)
        q, _, v = ports.node.attributes.get_ints("qkv_hidden_sizes", (weights[1] // 3,) * 3)
        keys = length + (ports.input(past)[3] if ports.has(past) else 0)
        return 2 * batch * length * math.prod(weights) + 2 * batch * length * keys * (q + v)

    return flops


def multi_head(past: int) -> Formula:
    """com.microsoft MultiHeadAttention: 3D inputs with all heads, or query, key and value packed in one."""

    def flops(ports: PortShapes) -> int:
        q = ports.input(0)
        batch, queries = q[:2]
        if len(q) == 5:
            return 2 * batch * queries * queries * 2 * q[2] * q[4]
        k = ports.input(1)
        keys = k[2] if len(k) == 4 else k[1]
        width = q[-1]
        v = ports.input(2) if ports.has(2) else None
        value = width if v is None else v[1] * v[3] if len(v) == 4 else v[-1]
        keys += ports.input(past)[2] if ports.has(past) and len(k) != 4 else 0
        return 2 * batch * queries * keys * (width + value)

    return flops


def grouped(ports: PortShapes) -> int:
    """com.microsoft GroupQueryAttention: every query head attends to all keys, past ones included."""
    batch, queries, width = ports.input(0)
    heads, kv_heads = schema.integer(ports.node, "num_heads"), schema.integer(ports.node, "kv_num_heads")
    size = width // heads if ports.has(1) else width // (heads + 2 * kv_heads)
    keys = queries + (ports.input(3)[2] if ports.has(3) else 0)
    return 2 * batch * heads * queries * keys * 2 * size


# FLOPs of operators other than products: a constant for each element, and transforms.


def pooled(ports: PortShapes) -> int:
    """Return one for each element of each pooling window."""
    kernel = ports.node.attributes["kernel_shape"].as_ints()
    return math.prod(ports.output()) * math.prod(kernel)


def local_norm(ports: PortShapes) -> int:
    """LRN: a sum of squares over `size` channels for each element."""
    return 2 * math.prod(ports.input(0)) * schema.integer(ports.node, "size")


def resize(ports: PortShapes) -> int:
    """Return INTERPOLATED for each element; the mode `nearest` does no arithmetic."""
    if ports.node.attributes.get_string("mode", "nearest") == "nearest":
        return 0
    return INTERPOLATED * math.prod(ports.output())


def fourier(ports: PortShapes) -> int:
    """Return 5 n log2 n of a fast Fourier transform, for each signal (Cooley and Tukey; FFTW's count)."""
    shape = ports.output()
    axis = schema.integer(ports.node, "axis", -2)
    length = ports.input(0)[axis]
    signals = math.prod(shape) // max(shape[axis], 1) // shape[-1]
    return _transform(length) * signals


def short_fourier(ports: PortShapes) -> int:
    """Return one transform for each frame: the output of STFT is batch x frames x bins x 2."""
    batch, frames, bins, _ = ports.output()
    two_sided = not schema.integer(ports.node, "onesided", 1)
    return batch * frames * _transform(bins if two_sided else 2 * (bins - 1))


def _transform(length: int) -> int:
    return round(5 * length * math.log2(length)) if length > 1 else 0


def determinant(ports: PortShapes) -> int:
    """Return two thirds of n cubed for each matrix: Gaussian elimination."""
    shape = ports.input(0)
    return round(2 / 3 * math.prod(shape) * shape[-1])


# FLOPs of matrix products, convolutions and recurrent cells. One multiply-add is two FLOPs.


def convolution(weights: int) -> Formula:
    """Return a product with a filter for each output element (ONNX: W is M x C/group x k1 x k2 ...)."""
    return lambda ports: 2 * math.prod(ports.output()) * math.prod(ports.input(weights)[1:])


def transposed(ports: PortShapes) -> int:
    """Return a product with a filter for each input element (ONNX: W is C x M/group x k1 x k2 ...)."""
    return 2 * math.prod(ports.input(0)) * math.prod(ports.input(1)[1:])


def product(ports: PortShapes) -> int:
    """Return 2 M N K for batches of M x K times K x N, respecting FusedMatMul's transposition flags."""
    return 2 * math.prod(ports.output()) * _inner(ports.input(0), ports.node)


def _inner(a: Shape, node: ir.Node) -> int:
    """Return the contracted dimension of A."""
    if len(a) == 1 or not schema.integer(node, "transA"):
        return a[-1]
    return a[0] if schema.integer(node, "transBatchA") else a[-2]


def gemm(second: int = 1) -> Formula:
    """Return 2 M N K of a matrix product, either operand of which may be transposed."""

    def flops(ports: PortShapes) -> int:
        a, b = ports.input(0), ports.input(second)
        return 2 * math.prod(a) * b[0 if schema.integer(ports.node, "transB") else 1]

    return flops


def packed(ports: PortShapes) -> int:
    """Return the FLOPs of a product by block-quantised weights, whose width is the attribute N."""
    return 2 * math.prod(ports.input(0)) * schema.integer(ports.node, "N")


def einsum(ports: PortShapes) -> int:
    """Return one for each operand and each setting of all indices: 2 M N K for a matrix product.

    Raises ValueError when equation and shapes do not match.
    """
    equation = ports.node.attributes["equation"].as_string()
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str | int, int] = {}
    for i, term in zip(range(len(ports.node.inputs)), terms, strict=True):
        shape = ports.input(i)
        for label, size in zip(_labels(term, len(shape)), shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)  # a dimension of 1 is broadcast
    return len(terms) * math.prod(sizes.values())


_DOTS = "..."


def _labels(term: str, rank: int) -> list[str | int]:
    """Return a label for each dimension; those of an ellipsis are numbered from the last, to broadcast."""
    if _DOTS not in term:
        return list(term)
    before, _, after = term.partition(_DOTS)
    hidden = rank - len(before) - len(after)
    return [*before, *range(-hidden, 0), *after]


def recurrent(ports: PortShapes) -> int:
    """Return the products of input and state with all weights of gates and directions, for each step."""
    steps, batch = ports.input(0)[:2]
    return 2 * steps * batch * (math.prod(ports.input(1)) + math.prod(ports.input(2)))


def of_node(
    node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None], *, floats: bool
) -> int | None:
    """Return the FLOPs of one run of a node without its bodies; None when they are unknown.

    `floats` holds if the node has float inputs or outputs: without any, only a quantised product counts.
    """
    key, record, ports = (node.domain, node.op_type), record_of(node), PortShapes(node, shape_of)
    if record.flops == 0 or not (floats or key in INTEGER):
        return 0
    formula = FORMULAS.get(key)
    try:
        if formula is not None:
            return formula(ports)
        if record.flops is None or node.domain not in ("", CONTRIB):
            return None
        reads = record.traits & Trait.REDUCES
        return record.flops * math.prod(ports.input(0) if reads else ports.output())
    except (UnknownShape, IndexError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None  # a shape is unknown, or has fewer dimensions than the operator requires


_ONNX: Mapping[str, Formula] = {
    "MatMul": product,
    "MatMulInteger": product,
    "QLinearMatMul": product,
    "Gemm": gemm(),
    "Conv": convolution(1),
    "ConvInteger": convolution(1),
    "DeformConv": convolution(1),
    "QLinearConv": convolution(3),
    "ConvTranspose": transposed,
    "Einsum": einsum,
    **dict.fromkeys(RECURRENT, recurrent),
    "Attention": attention,
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), pooled),
    "LRN": local_norm,
    "DFT": fourier,
    "STFT": short_fourier,
    "Det": determinant,
    "Resize": resize,
    "Upsample": resize,
}
_CONTRIB: Mapping[str, Formula] = {
    **dict.fromkeys((*MATMULS, "GemmFastGelu"), product),
    "FusedGemm": gemm(),
    "GemmFloat8": gemm(),
    "QGemm": gemm(3),
    **dict.fromkeys(("FusedConv", "NhwcConv", "NhwcFusedConv"), convolution(1)),
    "QLinearConv": convolution(3),
    "ConvTransposeWithDynamicPads": transposed,
    "MatMulNBits": packed,
    "MatMulBnb4": packed,
    "DynamicQuantizeLSTM": recurrent,
    "Attention": projected_attention(4),
    "QAttention": projected_attention(8),
    "MultiHeadAttention": multi_head(6),
    "DecoderMaskedMultiHeadAttention": multi_head(5),
    "GroupQueryAttention": grouped,
    "QLinearAveragePool": pooled,
    "NhwcMaxPool": pooled,
}
FORMULAS: Mapping[tuple[str, str], Formula] = {
    **{("", name): formula for name, formula in _ONNX.items()},
    **{(CONTRIB, name): formula for name, formula in _CONTRIB.items()},
}
"""Operators with a formula of their own, by domain and name."""

INTEGER = frozenset({("", "MatMulInteger"), ("", "ConvInteger"), (CONTRIB, "MatMulInteger16")})
"""Quantised products without float inputs or outputs."""
