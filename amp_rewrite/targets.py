"""The runtime that a model is for: which kernels it has in half, and which variables it wants as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_rewrite.errors import OptionError

Operator = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """A runtime.

    `float_only` are, for each half type by name, the operators, as (domain, name), that have no kernel for
    it: a half colour there would cost a copy to another device and back. `joined` are variables of an
    operator that its kernels want to be of one type, though the schema lets them differ. `has_faults` says
    that the runtime is onnxruntime, whose known faults (quirks.py) a result must not run into.
    """

    name: str
    float_only: Mapping[str, frozenset[Operator]] = field(default_factory=dict[str, frozenset[Operator]])
    joined: Mapping[Operator, frozenset[str]] = field(default_factory=dict[Operator, frozenset[str]])
    has_faults: bool = False

    def lacks(self, domain: str, op_type: str, half: str) -> bool:
        """Whether the runtime has no kernel of an operator in a half type."""
        return (domain, op_type) in self.float_only.get(half, ())


_NO_CUDA_KERNEL = (
    "Acos Acosh Asin Asinh Atan Atanh Bernoulli Col2Im Cosh DFT Det GlobalLpPool GridSample Hardmax LpPool "
    "MaxUnpool MelWeightMatrix Multinomial STFT Sinh Tan TfIdfVectorizer Unique"
)
_FLOAT_ONLY_CONTRIB = "ConvTransposeWithDynamicPads FusedConv GridSample"
_FLOAT16_ONLY = (
    "ArgMax ArgMin BatchNormalization Ceil ConvTranspose DequantizeLinear Elu Equal Floor GRU Greater "
    "GreaterOrEqual InstanceNormalization LRN LSTM LeakyRelu Less LessOrEqual Log OneHot PRelu Pad "
    "QuantizeLinear RNN Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin "
    "ReduceProd ReduceSumSquare Resize Round Selu Shrink ThresholdedRelu Upsample"
)
_FLOAT16_ONLY_CONTRIB = (
    "BiasAdd BiasSplitGelu ComplexMul DecoderAttention DecoderMaskedMultiHeadAttention "
    "DecoderMaskedSelfAttention EmbedLayerNormalization GatedRelativePositionBias Irfft LongformerAttention "
    "QAttention RelativePositionBias RemovePadding RestorePadding Rfft"
)


def _operators(own: str, contrib: str) -> frozenset[Operator]:
    return frozenset(
        [("", name) for name in own.split()] + [("com.microsoft", name) for name in contrib.split()]
    )


_FLOAT_ONLY = _operators(_NO_CUDA_KERNEL, _FLOAT_ONLY_CONTRIB)

ANY = Target("any")
"""A runtime with every kernel that the schemas allow."""

ONNXRUNTIME_CUDA = Target(
    "onnxruntime-cuda",
    float_only={
        "float16": _FLOAT_ONLY,
        "bfloat16": _FLOAT_ONLY | _operators(_FLOAT16_ONLY, _FLOAT16_ONLY_CONTRIB),
    },
    joined={
        ("", "BatchNormalization"): frozenset(("T", "T1", "T2", "U")),
        ("", "RMSNormalization"): frozenset(("T", "V")),
        ("", "SimplifiedLayerNormalization"): frozenset(("T", "V")),
    },
    has_faults=True,
)
"""onnxruntime 1.31's CUDA provider, from the names of its kernel classes. Operators that it lacks and that
ONNX defines by a function (Mish, Celu) run as that function, in half.
"""

BY_NAME = {target.name: target for target in (ONNXRUNTIME_CUDA, ANY)}


def named(name: str) -> Target:
    """The target of that name; OptionError for any other."""
    if name not in BY_NAME:
        raise OptionError(f"{name} is no known target", remedy=f"choose one of {', '.join(BY_NAME)}")
    return BY_NAME[name]
