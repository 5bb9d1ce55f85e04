"""Products: matrices, convolutions, recurrent layers, attention; transforms; quantised and gradient nodes."""

from typing import Any

from amp_rewrite.operators import scaling
from amp_rewrite.operators.record import MICROSOFT, Family, Trait, Typed, family, merge
from amp_rewrite.operators.scaling import OUT

_OF_TWO = scaling.linear({OUT: 1, 0: -1, 1: -1}, 2)
"""The first two inputs are multiplied, and others are added."""
_PRODUCT = Trait.MULTIPLIES
_CONV = Trait.MULTIPLIES | Trait.RANKED
_CONVERTS = Trait.LIKE_FIRST | Trait.CONVERTS
_ATTENTION = _PRODUCT | Trait.SOFTMAX
_GRADIENT = scaling.same(0, *(~port for port in range(8)))
"""All outputs are linear in dY."""


def _product(names: str, domain: str = "", traits: Trait = _PRODUCT, **columns: Any) -> Family:
    """Return operators whose FLOPs need a formula (`costs.flop_formulas`)."""
    return family(names, domain, traits=traits, flops=None, **columns)


OPERATORS = merge(
    _product("MatMul", channel=1, scales=_OF_TWO),
    _product("Gemm", bias=2, channel=1, scales=_OF_TWO),
    _product("Conv", traits=_CONV, bias=2, channel=0, scales=_OF_TWO),
    _product("ConvTranspose", traits=_CONV, bias=2, channel=1, scales=_OF_TWO),
    _product("DeformConv", traits=_CONV),
    _product("Einsum", scales=scaling.einsum),
    _product("GRU LSTM RNN", traits=_PRODUCT | Trait.RECURRENT),
    _product("Attention", traits=_ATTENTION, scores=3),
    _product("FusedMatMul TransposeMatMul", MICROSOFT, channel=1, fuses="MatMul", scales=_OF_TWO),
    _product("FusedMatMulActivation GemmFastGelu MatMulBnb4", MICROSOFT, fuses="MatMul"),
    _product("MatMulNBits", MICROSOFT, fuses="MatMul", scales=scaling.linear({OUT: 1, 0: -1, 2: -1}, 5)),
    _product("FusedGemm", MICROSOFT, bias=2, channel=1, fuses="Gemm"),
    _product("FusedConv", MICROSOFT, traits=_CONV, bias=2, channel=0, fuses="Conv"),
    _product("NhwcConv NhwcFusedConv", MICROSOFT, traits=_CONV, fuses="Conv"),
    _product("ConvTransposeWithDynamicPads", MICROSOFT, traits=_CONV),
    _product("Attention MultiHeadAttention", MICROSOFT, traits=_ATTENTION, fuses="Attention", scores=5),
    _product("GroupQueryAttention", MICROSOFT, traits=_ATTENTION, fuses="Attention", scores=10),
    _product("DecoderMaskedMultiHeadAttention", MICROSOFT),
    family("PackedAttention PackedMultiHeadAttention", MICROSOFT, fuses="Attention", flops=None),
    family("GemmFloat8", MICROSOFT, flops=None),
    family("DFT", traits=Trait.TRANSFORMS, scales=scaling.same(0, OUT), flops=None),
    family("STFT", traits=Trait.TRANSFORMS, flops=None),
    family("Det", flops=None),
    family("RotaryEmbedding", scales=scaling.positive(scaling.same(0, OUT)), flops=3),
    family("RotaryEmbedding", MICROSOFT, traits=Trait.LIKE_FIRST, scales=scaling.same(0, OUT), flops=3),
    family("GemmaRotaryEmbedding", MICROSOFT, traits=Trait.LIKE_FIRST, flops=3),
    # quantised arithmetic
    family("QuantizeLinear", traits=_CONVERTS, scales=scaling.positive(scaling.same(0, 1))),
    family(
        "DequantizeLinear",
        traits=_CONVERTS,
        scales=scaling.same(1, OUT),
        typed=Typed("output_dtype", "T3", like=1),
    ),
    family("DynamicQuantizeLinear", traits=_CONVERTS, scales=scaling.positive(scaling.same(0, ~1))),
    family("ConvInteger MatMulInteger", traits=Trait.CONVERTS, flops=None),
    family("QLinearConv QLinearMatMul", flops=None),
    family("DequantizeLinear QuantizeLinear", MICROSOFT, traits=_CONVERTS),
    family("QLinearLeakyRelu QLinearSigmoid", MICROSOFT, traits=Trait.LIKE_FIRST),
    family(
        "DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat QAttention QGemm",
        MICROSOFT,
        traits=Trait.CONVERTS,
        flops=None,
    ),
    family("MulInteger", MICROSOFT, traits=Trait.CONVERTS),
    family("QLinearConv", MICROSOFT, flops=None),
    # gradients of onnxruntime-training that are linear in dY
    family(
        "ReluGrad ConvGrad LayerNormalizationGrad SimplifiedLayerNormalizationGrad "
        "InvertibleLayerNormalizationGrad SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13 "
        "GeluGrad FastGeluGrad QuickGeluGrad BiasGeluGrad_dX BiasFastGeluGrad_dX SigmoidGrad TanhGrad "
        "LeakyReluGrad DropoutGrad BitmaskDropoutGrad MaxPoolGrad AveragePoolGrad "
        "BatchNormalizationGrad GatherElementsGrad SliceGrad",
        MICROSOFT,
        scales=_GRADIENT,
    ),
    family("SoftmaxCrossEntropyLossGrad", MICROSOFT, scales=scaling.same(0, 4, OUT)),
    family("GatherGrad GatherNDGrad", MICROSOFT, scales=scaling.same(2, OUT)),
    # more than one FLOP for each element, and no formula: their FLOPs are unknown
    family(
        "GRUUnit EfficientNMS_TRT DisentangledAttention_TRT MultilevelCropAndResize_TRT "
        "PyramidROIAlign_TRT LinearAttention CausalConvWithState",
        flops=None,
    ),
    family(
        "AttnLSTM BeamSearch CDist CausalConvWithState DecoderAttention DecoderMaskedSelfAttention "
        "DynamicSparseAttention DynamicTimeWarping EPContext EngramGate GatedDeltaNet "
        "GatedRelativePositionBias GreedySearch HyperConnectionPostMix HyperConnectionPreMix Irfft "
        "LinearAttention LinearAttentionGate LongformerAttention MatMulBlockQuantizedFp4Weight "
        "MatMulBlockQuantizedFp8Weight MatMulFpQ4 MatMulNBitsMlp MatMulNBitsQkv MoE "
        "PackedSparseAttentionIndexer PagedAttention QMoE QOrderedAttention QOrderedLongformerAttention "
        "QOrderedMatMul RelativePositionBias Rfft Sampling Snpe SparseAttention SparseAttentionIndexer "
        "SparsePagedAttention SparseToDenseMatMul TorchEmbedding VarlenCausalConvWithState "
        "WhisperBeamSearch WordConvEmbedding",
        MICROSOFT,
        flops=None,
    ),
    family("Inverse", MICROSOFT, traits=Trait.LIKE_FIRST, flops=None),
)
