"""FLOPs of one node from the shapes at its ports.

One multiply-add is two FLOPs. Products (matrices, convolutions, recurrent cells, attention) are counted by
the formulas in `products` and `attention`; biases and activations that are fused into a product are not.
What moves data counts nothing, a normalisation, a softmax or an interpolation a small constant for each
element (`PER_ELEMENT`), a reduction or a pooling one for each element that it reads, and all else one for
each element that it makes. Arithmetic on integers counts only where it is a quantised product.

No library counts them for us: onnx-tool 1.0.1 counts a ConvTranspose of 2,160 multiply-adds as 18,225,
fails on LSTM, and knows neither Attention; onnx-opcounter 0.0.4 needs a run of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.flops import attention, elements, products
from amp_rewrite.flops.ports import Formula, Ports, Unknown
from amp_rewrite.flops.protos import Shape
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB


def of_node(
    node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None], *, floats: bool
) -> int | None:
    """The FLOPs of one run of a node, bodies not included; None when they cannot be known.

    `floats` says whether the node reads or makes floats: without them only a quantised product counts.
    """
    key = (node.domain, node.op_type)
    if key in MOVEMENT or not (floats or key in INTEGER):
        return 0
    formula = FORMULAS.get(key)
    if formula is None and (key in UNCOUNTED or node.domain not in ("", CONTRIB)):
        return None
    try:
        return (formula or elements.made)(Ports(node, shape_of))
    except (Unknown, IndexError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None  # a shape is missing, or has fewer dimensions than the operator asks for


PER_ELEMENT: Mapping[str, int] = {
    "BatchNormalization": 2,  # scale and shift: mean and variance are folded into them
    "LayerNormalization": 7,  # mean, difference, square, mean, product, scale, shift
    "InstanceNormalization": 7,
    "GroupNormalization": 7,
    "MeanVarianceNormalization": 5,
    "RMSNormalization": 4,  # square, mean, product, scale
    "LpNormalization": 3,
    "SimplifiedLayerNormalization": 4,
    "Softmax": 5,  # maximum, difference, exp, sum, quotient
    "LogSoftmax": 5,
    "Hardmax": 1,
    "RotaryEmbedding": 3,
    "GridSample": elements.INTERPOLATED,
    "RoiAlign": elements.INTERPOLATED,
}
"""FLOPs for each element that a node makes whose arithmetic is no product."""

_REDUCTIONS = """ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare ReduceL1 ReduceL2
ReduceLogSum ReduceLogSumExp ArgMax ArgMin CumSum CumProd GlobalAveragePool GlobalMaxPool GlobalLpPool TopK
SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss""".split()
_CONTRIB_PER_ELEMENT = {
    "SkipLayerNormalization": 8,
    "SkipSimplifiedLayerNormalization": 5,
    "EmbedLayerNormalization": 9,
    "GroupNorm": 7,
    "SkipGroupNorm": 8,
    "BiasSoftmax": 6,
    "RotaryEmbedding": 3,
    "GemmaRotaryEmbedding": 3,
    "GridSample": elements.INTERPOLATED,
    "QLinearSoftmax": 5,
}
_ONNX: Mapping[str, Formula] = {
    "MatMul": products.product(),
    "MatMulInteger": products.product(),
    "QLinearMatMul": products.product(0, 3),
    "Gemm": products.gemm(),
    "Conv": products.convolution(1),
    "ConvInteger": products.convolution(1),
    "DeformConv": products.convolution(1),
    "QLinearConv": products.convolution(3),
    "ConvTranspose": products.transposed,
    "Einsum": products.einsum,
    "LSTM": products.recurrent,
    "GRU": products.recurrent,
    "RNN": products.recurrent,
    "Attention": attention.attention,
    "AveragePool": elements.pooled,
    "MaxPool": elements.pooled,
    "LpPool": elements.pooled,
    "LRN": elements.local_norm,
    "DFT": elements.fourier,
    "STFT": elements.short_fourier,
    "Det": elements.determinant,
    **dict.fromkeys(_REDUCTIONS, elements.per_read(1)),
    **{name: elements.per_made(times) for name, times in PER_ELEMENT.items()},
    "Resize": elements.resize,
    "Upsample": elements.resize,
}
_CONTRIB: Mapping[str, Formula] = {
    "FusedMatMul": products.product(),
    "FusedMatMulActivation": products.product(),
    "TransposeMatMul": products.product(),
    "DynamicQuantizeMatMul": products.product(),
    "MatMulIntegerToFloat": products.product(),
    "MatMulInteger16": products.product(),
    "FusedGemm": products.gemm(),
    "GemmFastGelu": products.product(),
    "GemmFloat8": products.gemm(),
    "QGemm": products.gemm(3),
    "FusedConv": products.convolution(1),
    "NhwcConv": products.convolution(1),
    "NhwcFusedConv": products.convolution(1),
    "QLinearConv": products.convolution(3),
    "ConvTransposeWithDynamicPads": products.transposed,
    "MatMulNBits": products.packed,
    "MatMulBnb4": products.packed,
    "DynamicQuantizeLSTM": products.recurrent,
    "Attention": attention.projected_attention(4),
    "QAttention": attention.projected_attention(8),
    "MultiHeadAttention": attention.multi_head(6),
    "DecoderMaskedMultiHeadAttention": attention.multi_head(5),
    "GroupQueryAttention": attention.grouped,
    "QLinearAveragePool": elements.pooled,
    "NhwcMaxPool": elements.pooled,
    "QLinearGlobalAveragePool": elements.per_read(1),
    "QLinearReduceMean": elements.per_read(1),
    **{name: elements.per_made(times) for name, times in _CONTRIB_PER_ELEMENT.items()},
}
FORMULAS: Mapping[tuple[str, str], Formula] = {
    **{("", name): formula for name, formula in _ONNX.items()},
    **{(CONTRIB, name): formula for name, formula in _CONTRIB.items()},
}
"""What is more than one for each element that is made, by domain and operator."""

INTEGER = frozenset({("", "MatMulInteger"), ("", "ConvInteger"), (CONTRIB, "MatMulInteger16")})
"""Quantised products without a float at any port."""

_MOVED = """BitCast Cast CastLike CenterCropPad Compress Concat ConcatFromSequence Constant ConstantOfShape
Crop DepthToSpace Dropout DynamicSlice Expand EyeLike Flatten Gather GatherElements GatherND Identity If
IsInf IsNaN Loop MaxUnpool MemcpyFromHost MemcpyToHost NonZero OneHot Optional OptionalGetElement
OptionalHasElement Pad Range Reshape ReverseSequence Scan Scatter ScatterElements ScatterND SequenceAt
SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap Shape Size Slice
SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu Unique Unsqueeze""".split()
_CONTRIB_MOVED = """BifurcationDetector ExpandDims GatherBlockQuantized GatherND Pad QLinearConcat Range
RemovePadding RestorePadding Trilu UnfoldTensor Unique""".split()
MOVEMENT = frozenset({*(("", name) for name in _MOVED), *((CONTRIB, name) for name in _CONTRIB_MOVED)})
"""Operators that move data, or whose arithmetic stands in their bodies."""

_OPAQUE = """GRUUnit EfficientNMS_TRT DisentangledAttention_TRT MultilevelCropAndResize_TRT
PyramidROIAlign_TRT LinearAttention NonMaxSuppression CausalConvWithState""".split()
_CONTRIB_OPAQUE = """AttnLSTM BeamSearch CDist CausalConvWithState DecoderAttention
DecoderMaskedSelfAttention DynamicSparseAttention DynamicTimeWarping EPContext EngramGate GatedDeltaNet
GatedRelativePositionBias GreedySearch HyperConnectionPostMix HyperConnectionPreMix Inverse Irfft
LinearAttention LinearAttentionGate LongformerAttention MatMulBlockQuantizedFp4Weight
MatMulBlockQuantizedFp8Weight MatMulFpQ4 MatMulNBitsMlp MatMulNBitsQkv MoE PackedAttention
PackedMultiHeadAttention PackedSparseAttentionIndexer PagedAttention QMoE QOrderedAttention
QOrderedLongformerAttention QOrderedMatMul RelativePositionBias Rfft Sampling Snpe SparseAttention
SparseAttentionIndexer SparsePagedAttention SparseToDenseMatMul TorchEmbedding VarlenCausalConvWithState
WhisperBeamSearch WordConvEmbedding""".split()
UNCOUNTED = frozenset({*(("", name) for name in _OPAQUE), *((CONTRIB, name) for name in _CONTRIB_OPAQUE)})
"""Operators with more than one FLOP an element and no formula here: their FLOPs are not known."""
