"""FLOPs of one node from the shapes of its inputs and outputs.

One multiply-add is two FLOPs. Products (matrices, convolutions, recurrent cells, attention) are counted by
the formulas in `product_formulas` and `attention_formulas`, without fused biases and activations. Data
movement counts nothing; a normalisation, a softmax or an interpolation a small constant for each element
(`PER_ELEMENT`); a reduction or pooling one for each element that it reads; all else one for each output
element. Integer arithmetic counts only in quantised products.

We found no library for this: onnx-tool 1.0.1 counts a ConvTranspose of 2,160 multiply-adds as 18,225, fails
on LSTM, and does not know Attention; onnx-opcounter 0.0.4 has to run the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.flops import attention_formulas, contrib_shapes, elementwise_formulas, product_formulas
from amp_rewrite.flops.port_shapes import Formula, PortShapes, UnknownShape
from amp_rewrite.flops.type_protos import Shape
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB


def of_node(
    node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None], *, floats: bool
) -> int | None:
    """The FLOPs of one run of a node without its bodies; None when they are unknown.

    `floats` says whether the node has float inputs or outputs: without any, only a quantised product counts.
    """
    key = (node.domain, node.op_type)
    if key in MOVEMENT or not (floats or key in INTEGER):
        return 0
    formula = FORMULAS.get(key)
    if formula is None and (key in UNCOUNTED or node.domain not in ("", CONTRIB)):
        return None
    try:
        return (formula or elementwise_formulas.per_output_element)(PortShapes(node, shape_of))
    except (UnknownShape, IndexError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None  # a shape is unknown, or has fewer dimensions than the operator requires


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
    "GridSample": elementwise_formulas.INTERPOLATED,
    "RoiAlign": elementwise_formulas.INTERPOLATED,
}
"""FLOPs for each output element of operators that are not products."""

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
    "GridSample": elementwise_formulas.INTERPOLATED,
    "QLinearSoftmax": 5,
}
_ONNX: Mapping[str, Formula] = {
    "MatMul": product_formulas.product(),
    "MatMulInteger": product_formulas.product(),
    "QLinearMatMul": product_formulas.product(0, 3),
    "Gemm": product_formulas.gemm(),
    "Conv": product_formulas.convolution(1),
    "ConvInteger": product_formulas.convolution(1),
    "DeformConv": product_formulas.convolution(1),
    "QLinearConv": product_formulas.convolution(3),
    "ConvTranspose": product_formulas.transposed,
    "Einsum": product_formulas.einsum,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), product_formulas.recurrent),
    "Attention": attention_formulas.attention,
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), elementwise_formulas.pooled),
    "LRN": elementwise_formulas.local_norm,
    "DFT": elementwise_formulas.fourier,
    "STFT": elementwise_formulas.short_fourier,
    "Det": elementwise_formulas.determinant,
    **dict.fromkeys(_REDUCTIONS, elementwise_formulas.per_read(1)),
    **{name: elementwise_formulas.per_made(times) for name, times in PER_ELEMENT.items()},
    "Resize": elementwise_formulas.resize,
    "Upsample": elementwise_formulas.resize,
}
_CONTRIB: Mapping[str, Formula] = {
    **dict.fromkeys((*contrib_shapes.MATMULS, "GemmFastGelu"), product_formulas.product()),
    "FusedGemm": product_formulas.gemm(),
    "GemmFloat8": product_formulas.gemm(),
    "QGemm": product_formulas.gemm(3),
    **dict.fromkeys(("FusedConv", "NhwcConv", "NhwcFusedConv"), product_formulas.convolution(1)),
    "QLinearConv": product_formulas.convolution(3),
    "ConvTransposeWithDynamicPads": product_formulas.transposed,
    "MatMulNBits": product_formulas.packed,
    "MatMulBnb4": product_formulas.packed,
    "DynamicQuantizeLSTM": product_formulas.recurrent,
    "Attention": attention_formulas.projected_attention(4),
    "QAttention": attention_formulas.projected_attention(8),
    "MultiHeadAttention": attention_formulas.multi_head(6),
    "DecoderMaskedMultiHeadAttention": attention_formulas.multi_head(5),
    "GroupQueryAttention": attention_formulas.grouped,
    "QLinearAveragePool": elementwise_formulas.pooled,
    "NhwcMaxPool": elementwise_formulas.pooled,
    "QLinearGlobalAveragePool": elementwise_formulas.per_read(1),
    "QLinearReduceMean": elementwise_formulas.per_read(1),
    **{name: elementwise_formulas.per_made(times) for name, times in _CONTRIB_PER_ELEMENT.items()},
}
FORMULAS: Mapping[tuple[str, str], Formula] = {
    **{("", name): formula for name, formula in _ONNX.items()},
    **{(CONTRIB, name): formula for name, formula in _CONTRIB.items()},
}
"""Operators with another count than one for each output element, by domain and name."""

INTEGER = frozenset({("", "MatMulInteger"), ("", "ConvInteger"), (CONTRIB, "MatMulInteger16")})
"""Quantised products without float inputs or outputs."""

_MOVED = """BitCast Cast CastLike CenterCropPad Compress Concat ConcatFromSequence Constant ConstantOfShape
Crop DepthToSpace Dropout DynamicSlice Expand EyeLike Flatten Gather GatherElements GatherND Identity If
IsInf IsNaN Loop MaxUnpool MemcpyFromHost MemcpyToHost NonZero OneHot Optional OptionalGetElement
OptionalHasElement Pad Range Reshape ReverseSequence Scan Scatter ScatterElements ScatterND SequenceAt
SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap Shape Size Slice
SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu Unique Unsqueeze""".split()
_CONTRIB_MOVED = """BifurcationDetector ExpandDims GatherBlockQuantized GatherND Pad QLinearConcat Range
RemovePadding RestorePadding Trilu UnfoldTensor Unique""".split()
MOVEMENT = frozenset({*(("", name) for name in _MOVED), *((CONTRIB, name) for name in _CONTRIB_MOVED)})
"""Operators that move data, or do all their arithmetic in their bodies."""

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
"""Operators with more than one FLOP per element and no formula here: their FLOPs are unknown."""
