"""Operators by what they do with the numbers that they read."""

from __future__ import annotations

from collections.abc import Mapping

ALL = range(1 << 31)
"""Every port of a variadic operator."""

FIRST = range(1)

REARRANGES = frozenset(
    "Cast DepthToSpace Dropout Expand Flatten Identity Reshape SpaceToDepth Squeeze Tile Transpose "
    "Unsqueeze".split()
)
"""Operators whose first output holds all elements of the first input, in whatever order and shape."""

_MOVING = """Compress DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Neg ReduceMax
    ReduceMin Reshape ReverseSequence Slice SpaceToDepth Split Squeeze Tile Transpose Trilu
    Unsqueeze""".split()
MASK_CARRIERS: Mapping[str, range] = {
    **dict.fromkeys(_MOVING, FIRST),
    **dict.fromkeys(("Add", "Concat", "Max", "Min", "Sub", "Sum"), ALL),
    **dict.fromkeys(("Pad", "ScatterElements", "ScatterND"), range(0, 3, 2)),
    "Where": range(1, 3),
}
"""Operators of ONNX whose outputs hold what these inputs hold, or sums of it: a mask stays one."""

LARGEST_MASK_SCALE = 64.0
"""The largest number, and its reciprocal the least, by which a product leaves a mask a mask: half of
float16's range divided by it is far beyond what a softmax tells from infinity.
"""

SOFTMAX_PORTS: Mapping[tuple[str, str], int] = {
    ("", "Exp"): 0,  # of a softmax that is written out: it makes 0 or infinity of a mask
    ("", "Softmax"): 0,
    ("", "Attention"): 3,
    ("com.microsoft", "Attention"): 5,
    ("com.microsoft", "GroupQueryAttention"): 10,
    ("com.microsoft", "MultiHeadAttention"): 5,
}
"""The input that a softmax is taken of, or that is added to the scores before one."""

ATTENTION_RESULTS = 3
"""The first outputs of an attention; the ones behind are scores."""

LINEAR_IN_THE_FIRST = """Identity Neg Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile Slice Gather
    GatherElements GatherND DepthToSpace SpaceToDepth ReduceSum ReduceMean CumSum Trilu AveragePool
    GlobalAveragePool ReverseSequence Compress MaxUnpool Col2Im Dropout GridSample DFT Upsample""".split()
"""Operators of ONNX whose first output is linear in their first input, by their documentation. Div and Split
are as well, but for their divisor and their other outputs.
"""

LINEAR_IN_ALL = ("Add", "Sub", "Sum", "Mean", "Concat")

LINEAR_GRADIENTS = """ReluGrad ConvGrad LayerNormalizationGrad SimplifiedLayerNormalizationGrad
    InvertibleLayerNormalizationGrad SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13 GeluGrad
    FastGeluGrad QuickGeluGrad BiasGeluGrad_dX BiasFastGeluGrad_dX SigmoidGrad TanhGrad LeakyReluGrad
    DropoutGrad BitmaskDropoutGrad MaxPoolGrad AveragePoolGrad BatchNormalizationGrad GatherElementsGrad
    SliceGrad""".split()
"""Gradients of onnxruntime-training that are linear in their first input, dY
(orttraining/orttraining/core/graph/training_op_defs.cc).
"""

KEEPING_ZERO = frozenset("Cast Expand Flatten Identity Neg Reshape Squeeze Tile Transpose Unsqueeze".split())
"""Operators of ONNX that make zeros alone of a first input of zeros."""

LARGEST_ZERO = 1 << 24
"""Elements up to which a stored value is read to see whether it is zero."""
