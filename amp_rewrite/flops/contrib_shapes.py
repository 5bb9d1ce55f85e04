"""Output shapes of onnxruntime's contrib operators, which onnx's inference does not know.

Only those that onnxruntime's optimisers and common exporters emit; the operators are described in
onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from amp_rewrite.flops.type_protos import Shape
from amp_rewrite.onnx_types import attributes
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB

InputShapes = Sequence[Shape | None]
"""The shapes of a node's inputs, None where unknown."""


def outputs(node: ir.Node, read: InputShapes) -> tuple[Shape | None, ...]:
    """The shape of every output of a contrib operator; None where unknown."""
    rule = _RULES.get(node.op_type) if node.domain in ("", CONTRIB) else None
    nothing = (None,) * len(node.outputs)
    if rule is None:
        return nothing
    try:
        found = rule(node, read)
    except (LookupError, TypeError, ValueError):  # fewer inputs or dimensions than the operator requires
        return nothing
    return (*found, *nothing)[: len(node.outputs)]


def matrix(a: Shape, b: Shape, node: ir.Node) -> Shape:
    """The shape of a matrix product; takes FusedMatMul's transposition flags into account."""
    if len(a) == 1:
        return matrix((1, *a), b, node)[1:]  # a vector is a matrix of one row, which is removed again
    if len(b) == 1:
        return matrix(a, (*b, 1), node)[:-1]
    a, b = _transposed_shape(a, node, "A"), _transposed_shape(b, node, "B")
    return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


def _transposed_shape(shape: Shape, node: ir.Node, which: str) -> Shape:
    if attributes.integer(node, f"transBatch{which}"):
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if attributes.integer(node, f"trans{which}") else shape


def _first(_: ir.Node, read: InputShapes) -> InputShapes:
    return [read[0]]


def _skip(_: ir.Node, read: InputShapes) -> InputShapes:
    """Skip...LayerNormalization: the output, two statistics, and the sum before normalisation."""
    x = read[0]
    return [x, None, None, x]


def _broadcast(*ports: int) -> Callable[[ir.Node, InputShapes], InputShapes]:
    def shapes(_: ir.Node, read: InputShapes) -> InputShapes:
        parts = [part for port in ports if (part := read[port]) is not None]
        return [np.broadcast_shapes(*parts) if len(parts) == len(ports) else None]

    return shapes


def _matmul(node: ir.Node, read: InputShapes) -> InputShapes:
    a, b = read[0], read[1]
    return [] if a is None or b is None else [matrix(a, b, node)]


def _packed(node: ir.Node, read: InputShapes) -> InputShapes:
    """Products by block-quantised weights, whose width is the attribute N."""
    a = read[0]
    return [None if a is None else (*a[:-1], attributes.integer(node, "N"))]


def _attention(node: ir.Node, read: InputShapes) -> InputShapes:
    x, weights = read[0], read[1]
    if x is None or weights is None:
        return []
    sizes = node.attributes.get_ints("qkv_hidden_sizes")
    hidden = sizes[2] if sizes is not None else weights[1] // 3
    return [(x[0], x[1], hidden)]


def _heads(_: ir.Node, read: InputShapes) -> InputShapes:
    """MultiHeadAttention and related operators: as wide as the values, as long as the queries."""
    q, v = read[0], read[2] if len(read) > 2 else None
    if q is None:
        return []
    if len(q) == 5:  # query, key and value in one: batch, length, heads, 3, size
        return [(q[0], q[1], q[2] * q[4])]
    if v is not None and len(v) == 4:  # values by head: batch, heads, length, size
        return [(q[0], q[1], v[1] * v[3])]
    return [(q[0], q[1], v[-1] if v is not None else q[-1])]


def _grouped(node: ir.Node, read: InputShapes) -> InputShapes:
    q, key = read[0], read[1] if len(read) > 1 else None
    past, grown = read[3] if len(read) > 3 else None, None
    if q is None:
        return []
    heads, kept = attributes.integer(node, "num_heads"), attributes.integer(node, "kv_num_heads")
    packed = key is None  # query, key and value in one tensor
    size = q[-1] // (heads + 2 * kept) if packed else q[-1] // heads
    if past is not None:
        grown = (past[0], past[1], past[2] + q[1], past[3])
    return [(q[0], q[1], heads * size), grown, grown]


def _embedding(_: ir.Node, read: InputShapes) -> InputShapes:
    ids, words = read[0], read[2]
    embedded = None if ids is None or words is None else (*ids, words[1])
    return [embedded, None if ids is None else (ids[0],), embedded]


def _global_pool(node: ir.Node, read: InputShapes) -> InputShapes:
    x = read[0]
    if x is None:
        return []
    if attributes.integer(node, "channels_last"):
        return [(x[0], *(1,) * (len(x) - 2), x[-1])]
    return [(x[0], x[1], *(1,) * (len(x) - 2))]


def _concat(node: ir.Node, read: InputShapes) -> InputShapes:
    """QLinearConcat: scale and zero point of the output, then tensor, scale and zero point of each input."""
    parts = [part for part in read[2::3] if part is not None]
    if len(parts) != len(read[2::3]):
        return []
    axis = attributes.integer(node, "axis") % len(parts[0])
    total = sum(part[axis] for part in parts)
    return [(*parts[0][:axis], total, *parts[0][axis + 1 :])]


def _crop(node: ir.Node, read: InputShapes) -> InputShapes:
    """Crop, from Core ML: removes left, top, right and bottom borders of an image."""
    x, held = read[0], node.attributes.get("border")
    if x is None or held is None or "scale" in node.attributes:
        return []
    left, top, right, bottom = held.as_ints()
    return [(x[0], x[1], x[2] - top - bottom, x[3] - left - right)]


def _qgemm(node: ir.Node, read: InputShapes) -> InputShapes:
    """QGemm: A, its scale and zero point, then B."""
    a, b = read[0], read[3]
    if a is None or b is None:
        return []
    rows = a[1 if attributes.integer(node, "transA") else 0]
    return [(rows, b[0 if attributes.integer(node, "transB") else 1])]


LIKE_FIRST = """BiasAdd BiasDropout BiasGelu BiasSoftmax BitmaskBiasDropout BitmaskDropout BranchwiseRMSNorm
DequantizeLinear FastGelu GatedRMSNorm Gelu GemmaRotaryEmbedding GroupNorm QLinearLeakyRelu
QLinearSigmoid QLinearSoftmax QuantizeLinear QuickGelu RotaryEmbedding ScaledSiLU Trilu Affine ImageScaler
ParametricSoftplus ScaledTanh SimplifiedLayerNormalization Inverse""".split()
"""Operators whose first output has the shape of the first input."""
MATMULS = """FusedMatMul FusedMatMulActivation TransposeMatMul DynamicQuantizeMatMul MatMulInteger16
MatMulIntegerToFloat""".split()
"""Contrib operators with the inputs and the output shape of a MatMul."""

_RULES: dict[str, Callable[[ir.Node, InputShapes], InputShapes]] = {
    **dict.fromkeys(LIKE_FIRST, _first),
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip,
    "QLinearAdd": _broadcast(0, 3),
    "QLinearMul": _broadcast(0, 3),
    "QLinearWhere": _broadcast(0, 1, 4),
    "MulInteger": _broadcast(0, 2),
    **dict.fromkeys(MATMULS, _matmul),
    "MatMulNBits": _packed,
    "MatMulBnb4": _packed,
    "Attention": _attention,
    "QAttention": _attention,
    "MultiHeadAttention": _heads,
    "DecoderMaskedMultiHeadAttention": _heads,
    "GroupQueryAttention": _grouped,
    "EmbedLayerNormalization": _embedding,
    "QLinearGlobalAveragePool": _global_pool,
    "QLinearConcat": _concat,
    "QGemm": _qgemm,
    "Crop": _crop,
}


def standard(node: ir.Node) -> str:
    """The ONNX operator with the same inputs and shapes as a contrib node; empty where there is none."""
    own = node.domain == CONTRIB and not attributes.integer(node, "channels_last")
    return _STANDARD.get(node.op_type, "") if own else ""


_STANDARD = {
    "FusedConv": "Conv",
    "FusedGemm": "Gemm",
    "QLinearConv": "QLinearConv",
    "GridSample": "GridSample",
    "DynamicQuantizeLSTM": "LSTM",
}
