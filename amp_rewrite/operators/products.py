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
_CONVERTS = Trait.LIKE_FIRST | Trait.CONVERTS
_GRADIENT = scaling.same(0, *(~port for port in range(8)))
"""All outputs are linear in dY."""


def _product(names: str, count: Formula, traits: Trait = _PRODUCT, **columns: Any) -> Family:
    return family(names, traits=traits, flops=count, **columns)


def _fused(names: str, count: Formula, fuses: str = "", traits: Trait = _PRODUCT, **columns: Any) -> Family:
    return family(names, MICROSOFT, traits=traits, flops=count, fuses=fuses, **columns)


def _attention(names: str, count: Formula, mask: int, domain: str = MICROSOFT) -> Family:
    fuses, roles = "Attention" if domain else "", {mask: Role.SCORES}
    return family(names, domain, traits=_PRODUCT | Trait.SOFTMAX, flops=count, fuses=fuses, roles=roles)


_matmul, _gemm, _conv = flops.product(), flops.gemm(), flops.convolution(1)
_LAYER = {4: Role.LENGTH, 5: Role.STATE}
_IMAGE: dict[str, Any] = {"roles": {0: Role.IMAGE}}

OPERATORS = merge(
    _product("MatMul", _matmul, channel=1, scales=_OF_TWO),
    _product("Gemm", _gemm, bias=2, channel=1, scales=_OF_TWO),
    _product("Conv", _conv, _CONV, bias=2, channel=0, scales=_OF_TWO, **_IMAGE),
    _product("ConvTranspose", flops.transposed, _CONV, bias=2, channel=1, scales=_OF_TWO, **_IMAGE),
    _product("DeformConv", _conv, _CONV, **_IMAGE),
    _product("Einsum", flops.einsum, scales=scaling.einsum),
    _product("GRU RNN", flops.recurrent, _RECURRENT, roles=_LAYER),
    _product("LSTM", flops.recurrent, _RECURRENT, roles={**_LAYER, 6: Role.STATE}),
    _attention("Attention", flops.attention, 3, domain=""),
    _attention("Attention", flops.projected_attention(4), 5),
    _attention("MultiHeadAttention", flops.multi_head(6), 5),
    _attention("GroupQueryAttention", flops.grouped, 10),
    _fused("DecoderMaskedMultiHeadAttention", flops.multi_head(5)),
    _fused("FusedMatMul TransposeMatMul", _matmul, "MatMul", channel=1, scales=_OF_TWO),
    _fused("FusedMatMulActivation GemmFastGelu", _matmul, "MatMul"),
    _fused("MatMulBnb4", flops.packed, "MatMul"),
    _fused("MatMulNBits", flops.packed, "MatMul", scales=scaling.linear({OUT: 1, 0: -1, 2: -1}, 5)),
    _fused("FusedGemm", _gemm, "Gemm", bias=2, channel=1, like="Gemm"),
    _fused("FusedConv", _conv, "Conv", _CONV, bias=2, channel=0, like="Conv", **_IMAGE),
    _fused("NhwcConv NhwcFusedConv", _conv, "Conv", _CONV),
    _fused("ConvTransposeWithDynamicPads", flops.transposed, traits=_CONV),
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
    _product("ConvInteger", _conv, Trait.CONVERTS, **_IMAGE),
    _product("MatMulInteger", _matmul, Trait.CONVERTS),
    _product("QLinearConv", flops.convolution(3), Trait.NONE, **_IMAGE),
    _product("QLinearMatMul", flops.product(0, 3), Trait.NONE),
    family("DequantizeLinear QuantizeLinear", MICROSOFT, traits=_CONVERTS),
    family("QLinearLeakyRelu QLinearSigmoid", MICROSOFT, traits=Trait.LIKE_FIRST),
    _fused("DynamicQuantizeLSTM", flops.recurrent, traits=Trait.CONVERTS, like="LSTM"),
    _fused("DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat", _matmul, traits=Trait.CONVERTS),
    _fused("QAttention", flops.projected_attention(8), traits=Trait.CONVERTS),
    _fused("QGemm", flops.gemm(3), traits=Trait.CONVERTS),
    family("MulInteger", MICROSOFT, traits=Trait.CONVERTS),
    _fused("QLinearConv", flops.convolution(3), traits=Trait.NONE, like="QLinearConv", **_IMAGE),
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
