"""Facts about ONNX's operators that no schema states: the inputs that an operator moves, scales or averages,
the limits of its outputs, and the digits of its inputs that it needs.

All concern the default domain, unless they name one; the source is the operator's description, unless
another is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

REARRANGES = frozenset(
    "Cast DepthToSpace Dropout Expand Flatten Identity Reshape SpaceToDepth Squeeze Tile Transpose "
    "Unsqueeze".split()
)
"""Operators whose first output has all elements of the first input, in any order and shape."""
SELECTS = frozenset(
    "Compress Gather GatherElements GatherND Pad ReverseSequence SequenceAt Slice Split Trilu".split()
)
"""Operators whose outputs hold some elements of the first input, and zeros."""
EXTREMES = frozenset("ReduceMax ReduceMin TopK".split())
"""Operators that select elements of the first input by their size."""
BOUNDS = frozenset("Clip Max Min".split())
"""Operators that select the larger or the smaller of elements of their inputs."""
JOINS: Mapping[str, tuple[int, ...] | None] = {
    "Concat": None,
    "ConcatFromSequence": None,
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "SequenceConstruct": None,
    "SequenceInsert": (0, 1),
    "Where": (1, 2),
}
"""Operators whose output has elements of several inputs, and these inputs, None for all of them; scatters may
also add (`effective_op`)."""
CONTROL_FLOW = frozenset("If Loop Scan".split())
MOVERS = (REARRANGES - {"Cast"}) | SELECTS | EXTREMES | {"Max", "Min"} | JOINS.keys() | CONTROL_FLOW
"""Operators whose outputs hold values of their inputs and no others, in their type."""

ARITHMETIC = frozenset(
    "Abs Add Ceil Clip Div Floor Max Min Mod Mul Neg Pow Range Round Sign Sqrt Sub Sum".split()
)
PRODUCTS = frozenset(
    "Attention Conv ConvTranspose DeformConv Einsum FusedConv FusedGemm FusedMatMul GRU Gemm LSTM MatMul "
    "MatMulNBits MultiHeadAttention RNN".split()
)
RECURRENT = ("GRU", "LSTM", "RNN")
"""Operators that compute a sequence step by step, from a state."""
AVERAGES = frozenset("AveragePool GlobalAveragePool ReduceMean ReduceSum".split())
"""Operators that sum elements of the first input with equal weights."""

TRANSFORMS = frozenset(("DFT", "STFT"))
COORDINATES: Mapping[str, tuple[int, ...]] = {
    "CropAndResize": (1,),
    "GridSample": (1,),
    "MaxRoiPool": (1,),
    "NonMaxSuppression": (0,),
    "Resize": (1, 2),
    "RoiAlign": (1,),
}
"""Operators that read pixel coordinates, and these inputs: half cannot tell pixels beyond 2048 apart."""

LIMITS: Mapping[str, frozenset[float]] = {
    **dict.fromkeys(("Cos", "Erf", "Sin", "Tanh"), frozenset((-1.0, 0.0, 1.0))),
    **dict.fromkeys(("Exp", "HardSigmoid", "Sigmoid", "Softmax"), frozenset((0.0, 1.0))),
}
"""Limits that outputs approach without reaching them; of an exponential, where it is at most 1."""
DIVISORS: Mapping[str, int] = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0, "Sqrt": 0}
"""Operators sensitive to the relative error of an input, however small its value, and that input; a Pow is if
the exponent is negative or no integer."""

ALL = range(1 << 31)
"""Every port of a variadic operator."""

FIRST = range(1)

_OTHERS = {"Cast", "Dropout", "Pad", "SequenceAt", "TopK"}
MASK_CARRIERS: Mapping[str, range] = {
    **dict.fromkeys((REARRANGES | SELECTS | EXTREMES) - _OTHERS | {"Neg"}, FIRST),
    **dict.fromkeys(("Add", "Concat", "Max", "Min", "Sub", "Sum"), ALL),
    **dict.fromkeys(("Pad", "ScatterElements", "ScatterND"), range(0, 3, 2)),
    "Where": range(1, 3),
}
"""Operators of ONNX whose outputs have values of these inputs, or sums of them: a mask stays a mask."""

LARGEST_MASK_SCALE = 64.0
"""The largest factor, and its reciprocal the least, by which a scaled mask stays a mask: half of float16's
range divided by it is far beyond what a softmax distinguishes from infinity.
"""

SOFTMAX_PORTS: Mapping[tuple[str, str], int] = {
    ("", "Exp"): 0,  # of a decomposed softmax: it maps a mask to 0 or infinity
    ("", "Softmax"): 0,
    ("", "Attention"): 3,
    ("com.microsoft", "Attention"): 5,
    ("com.microsoft", "GroupQueryAttention"): 10,
    ("com.microsoft", "MultiHeadAttention"): 5,
}
"""The input of a softmax, or the one that is added to the scores before it."""

ATTENTION_RESULTS = 3
"""The number of outputs of an attention before its scores."""

LINEAR_IN_THE_FIRST = tuple(
    (REARRANGES | SELECTS | AVERAGES) - {"Cast", "Pad", "SequenceAt", "Split"}
    | {"Col2Im", "CumSum", "DFT", "GridSample", "MaxUnpool", "Neg", "Upsample"}
)
"""Operators of ONNX whose first output is linear in their first input, by their documentation. Div and Split
are too, except for the divisor and the other outputs.
"""

LINEAR_IN_ALL = ("Add", "Sub", "Sum", "Mean", "Concat")

PRODUCTS_OF_TWO = (
    *(("", name) for name in ("Mul", "MatMul", "Gemm", "Conv", "ConvTranspose")),
    *(("com.microsoft", name) for name in ("FusedMatMul", "TransposeMatMul")),
)
"""Products of their first two inputs, to which others are added."""

POSITIVE_IN_THE_FIRST = """Abs GlobalLpPool GlobalMaxPool LeakyRelu LpPool MaxPool MaxRoiPool PRelu ReduceL1
    ReduceL2 ReduceMax ReduceMin Relu RoiAlign RotaryEmbedding TopK""".split()
"""More operators whose first output is multiplied by any positive factor of their first input."""

COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")

UNSCALED = "ArgMax ArgMin Hardmax IsInf IsNaN LpNormalization NonZero Shape Sign Size".split()
"""Operators whose outputs a positive factor of their first input does not change."""

NORMS: Mapping[tuple[str, str], tuple[tuple[int, ...], tuple[int, ...]]] = {
    ("", "GroupNormalization"): ((0,), (1, 2)),
    ("", "InstanceNormalization"): ((0,), (1, 2)),
    ("", "LayerNormalization"): ((0,), (1, 2)),
    ("", "RMSNormalization"): ((0,), (1,)),
    ("", "SimplifiedLayerNormalization"): ((0,), (1,)),
    ("com.microsoft", "GroupNorm"): ((0,), (1, 2)),
    ("com.microsoft", "SkipLayerNormalization"): ((0, 1, 4), (2, 3)),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): ((0, 1, 3), (2,)),
}
"""Operators that divide the sum of some inputs by the root of its variance or mean square and an attribute
epsilon, and scale and shift the quotient by others. The sum is their fourth output, the root's reciprocal the
one before, and its mean the second; of a SimplifiedLayerNormalization, the reciprocal is the second.
"""

LINEAR_GRADIENTS = """ReluGrad ConvGrad LayerNormalizationGrad SimplifiedLayerNormalizationGrad
    InvertibleLayerNormalizationGrad SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13 GeluGrad
    FastGeluGrad QuickGeluGrad BiasGeluGrad_dX BiasFastGeluGrad_dX SigmoidGrad TanhGrad LeakyReluGrad
    DropoutGrad BitmaskDropoutGrad MaxPoolGrad AveragePoolGrad BatchNormalizationGrad GatherElementsGrad
    SliceGrad""".split()
"""Gradients of onnxruntime-training that are linear in their first input, dY
(orttraining/orttraining/core/graph/training_op_defs.cc).
"""

LARGEST_EXPONENT = 40
"""The largest power of two, up or down, that a stored value may be of the value that it stands for: what the
original has from 2^-86 to 2^87 is then a normal number of float32.
"""

KEEPING_ZERO = REARRANGES | {"Neg"}
"""Operators of ONNX whose output is zero if their first input is."""

LARGEST_ZERO = 1 << 24
"""The largest number of elements of a constant that is read to see whether it is zero."""

FUSED_FORMS = {
    "Conv": "FusedConv NhwcConv NhwcFusedConv",
    "MatMul": "FusedMatMul FusedMatMulActivation TransposeMatMul GemmFastGelu MatMulNBits MatMulBnb4",
    "Gemm": "FusedGemm",
    "Gelu": "BiasGelu FastGelu QuickGelu BiasSplitGelu",
    "Softmax": "BiasSoftmax",
    "Attention": "Attention MultiHeadAttention GroupQueryAttention PackedAttention PackedMultiHeadAttention",
    "LayerNormalization": "SkipLayerNormalization EmbedLayerNormalization",
    "RMSNormalization": "SimplifiedLayerNormalization SkipSimplifiedLayerNormalization",
    "SimplifiedLayerNormalization": "SkipSimplifiedLayerNormalization",
    "GroupNormalization": "GroupNorm SkipGroupNorm",
}
"""Operators of com.microsoft that contain another one, by that."""

CASTS = frozenset({("", "Cast"), ("", "CastLike")})
"""Operators that change the element type and nothing else, with their domains."""

_NO_ARITHMETIC: Mapping[str, Sequence[str]] = {
    "": """BitCast Cast CastLike Constant ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger
        QuantizeLinear Shape Size""".split(),
    "com.microsoft": """DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulInteger16
        MatMulIntegerToFloat MulInteger QAttention QGemm QuantizeLinear""".split(),
}


def has_arithmetic(domain: str, op_type: str) -> bool:
    """Return whether an operator computes with floats: no conversion, quantised arithmetic, Constant, or
    shape query does.
    """
    return op_type not in _NO_ARITHMETIC.get(domain, ()) and not op_type.startswith("QLinear")
