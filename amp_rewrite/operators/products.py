"""Products: matrices, convolutions, recurrent layers, attention; transforms; quantised and gradient nodes."""

from typing import Any

from amp_rewrite.operators import flops, scaling
from amp_rewrite.operators.flops import Formula
from amp_rewrite.operators.record import MICROSOFT, Family, Role, Trait, Typed, family, merge
from amp_rewrite.operators.scaling import OUT

_OF_TWO = scaling.linear({OUT: 1, 0: -1, 1: -1}, 2)
"""The first two inputs are multiplied, and others are added."""
_PRODUCT = Trait.MULTIPLIES
_CONV = Trait.MULTIPLIES | Trait.RANKED
_RECURRENT = Trait.MULTIPLIES | Trait.RECURRENT
_LAYER = {4: Role.LENGTH, 5: Role.STATE}
_CONVERTS = Trait.LIKE_FIRST | Trait.CONVERTS
_ATTENTION = _PRODUCT | Trait.SOFTMAX
_GRADIENT = scaling.same(0, *(~port for port in range(8)))
"""All outputs are linear in dY."""


def _product(
    names: str, count: Formula, domain: str = "", traits: Trait = _PRODUCT, **columns: Any
) -> Family:
    return family(names, domain, traits=traits, flops=count, **columns)


_matmul, _gemm, _conv = flops.product(), flops.gemm(), flops.convolution(1)
_IMAGE: dict[str, Any] = {"roles": {0: Role.IMAGE}}

OPERATORS = merge(
    _product("MatMul", _matmul, channel=1, scales=_OF_TWO),
    _product("Gemm", _gemm, bias=2, channel=1, scales=_OF_TWO),
    _product("Conv", _conv, traits=_CONV, bias=2, channel=0, scales=_OF_TWO, **_IMAGE),
    _product("ConvTranspose", flops.transposed, traits=_CONV, bias=2, channel=1, scales=_OF_TWO, **_IMAGE),
    _product("DeformConv", _conv, traits=_CONV, **_IMAGE),
    _product("Einsum", flops.einsum, scales=scaling.einsum),
    _product("GRU RNN", flops.recurrent, traits=_RECURRENT, roles=_LAYER),
    _product("LSTM", flops.recurrent, traits=_RECURRENT, roles={**_LAYER, 6: Role.STATE}),
    _product("Attention", flops.attention, traits=_ATTENTION, roles={3: Role.SCORES}),
    _product("FusedMatMul TransposeMatMul", _matmul, MICROSOFT, channel=1, fuses="MatMul", scales=_OF_TWO),
    _product("FusedMatMulActivation GemmFastGelu", _matmul, MICROSOFT, fuses="MatMul"),
    _product("MatMulBnb4", flops.packed, MICROSOFT, fuses="MatMul"),
    _product(
        "MatMulNBits",
        flops.packed,
        MICROSOFT,
        fuses="MatMul",
        scales=scaling.linear({OUT: 1, 0: -1, 2: -1}, 5),
    ),
    _product("FusedGemm", _gemm, MICROSOFT, bias=2, channel=1, fuses="Gemm", like="Gemm"),
    _product(
        "FusedConv",
        _conv,
        MICROSOFT,
        traits=_CONV,
        bias=2,
        channel=0,
        fuses="Conv",
        like="Conv",
        **_IMAGE,
    ),
    _product("NhwcConv NhwcFusedConv", _conv, MICROSOFT, traits=_CONV, fuses="Conv"),
    _product("ConvTransposeWithDynamicPads", flops.transposed, MICROSOFT, traits=_CONV),
    _product(
        "Attention",
        flops.projected_attention(4),
        MICROSOFT,
        traits=_ATTENTION,
        fuses="Attention",
        roles={5: Role.SCORES},
    ),
    _product(
        "MultiHeadAttention",
        flops.multi_head(6),
        MICROSOFT,
        traits=_ATTENTION,
        fuses="Attention",
        roles={5: Role.SCORES},
    ),
    _product(
        "GroupQueryAttention",
        flops.grouped,
        MICROSOFT,
        traits=_ATTENTION,
        fuses="Attention",
        roles={10: Role.SCORES},
    ),
    _product("DecoderMaskedMultiHeadAttention", flops.multi_head(5), MICROSOFT),
    family("PackedAttention PackedMultiHeadAttention", MICROSOFT, fuses="Attention", flops=None),
    family("GemmFloat8", MICROSOFT, flops=_gemm),
    family("DFT", traits=Trait.TRANSFORMS, scales=scaling.same(0, OUT), flops=flops.fourier),
    family("STFT", traits=Trait.TRANSFORMS, flops=flops.short_fourier),
    family("Det", flops=flops.determinant),
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
    family("ConvInteger", traits=Trait.CONVERTS, flops=_conv, **_IMAGE),
    family("MatMulInteger", traits=Trait.CONVERTS, flops=_matmul),
    family("QLinearConv", flops=flops.convolution(3), **_IMAGE),
    family("QLinearMatMul", flops=flops.product(0, 3)),
    family("DequantizeLinear QuantizeLinear", MICROSOFT, traits=_CONVERTS),
    family("QLinearLeakyRelu QLinearSigmoid", MICROSOFT, traits=Trait.LIKE_FIRST),
    family("DynamicQuantizeLSTM", MICROSOFT, traits=Trait.CONVERTS, like="LSTM", flops=flops.recurrent),
    family(
        "DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat",
        MICROSOFT,
        traits=Trait.CONVERTS,
        flops=_matmul,
    ),
    family("QAttention", MICROSOFT, traits=Trait.CONVERTS, flops=flops.projected_attention(8)),
    family("QGemm", MICROSOFT, traits=Trait.CONVERTS, flops=flops.gemm(3)),
    family("MulInteger", MICROSOFT, traits=Trait.CONVERTS),
    family("QLinearConv", MICROSOFT, like="QLinearConv", flops=flops.convolution(3), **_IMAGE),
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
