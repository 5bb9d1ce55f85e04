"""The runtime that a model is for: which kernels it has in half, and which variables it wants as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_rewrite.errors import OptionError

Operator = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """A runtime.

    `float_only` are operators, as (domain, name), whose kernels know no half: a half colour there would
    cost a copy to another device and back. `joined` are variables of an operator that its kernels want to
    be of one type, though the schema lets them differ. `has_faults` says that the runtime is onnxruntime,
    whose known faults (quirks.py) a result must not run into.
    """

    name: str
    float_only: frozenset[Operator] = frozenset()
    joined: Mapping[Operator, frozenset[str]] = field(default_factory=dict[Operator, frozenset[str]])
    has_faults: bool = False


_NO_CUDA_KERNEL = (
    "Acos Acosh Asin Asinh Atan Atanh Bernoulli Cosh DFT Det GlobalLpPool GridSample Hardmax LpPool "
    "MaxUnpool MelWeightMatrix Multinomial STFT Sinh Tan TfIdfVectorizer Unique"
)
_FLOAT_ONLY_CONTRIB = "ConvTransposeWithDynamicPads FusedConv GridSample"

ANY = Target("any")
"""A runtime with every kernel that the schemas allow."""

ONNXRUNTIME_CUDA = Target(
    "onnxruntime-cuda",
    float_only=frozenset(
        [("", name) for name in _NO_CUDA_KERNEL.split()]
        + [("com.microsoft", name) for name in _FLOAT_ONLY_CONTRIB.split()]
    ),
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
