"""The runtime that a model is for: its half kernels, and variables that must have one type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from amp_rewrite.errors import OptionError
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.schema import Signature
from amp_rewrite.policy import kernel_table
from amp_rewrite.policy.entries import Operator
from amp_rewrite.policy.kernel_table import Support

# Nodes that onnxruntime's CUDA provider refuses for an attribute or input, though it has a kernel.
#
# They run on the CPU in float32 models too. In half the CPU provider has mostly no kernel for them, and
# onnxruntime adds Casts and copies around them. No table of kernels shows these; the rows are from
# `CUDAExecutionProvider::GetCapability` in onnxruntime/core/providers/cuda/cuda_execution_provider.cc
# (`RNNNeedFallbackToCPU`, `ConvTransposeNeedFallbackToCPU`, `ArgMaxOrArgMinNeedFallbackToCPU`), each seen
# with onnxruntime-gpu 1.31.1 (tests/test_refused_attributes.py). A Cast to strings is refused as well, and
# is never half; `Conv` and pooling take any padding.

Refused = Callable[[ir.Node], Iterator[str]]
"""A function that yields the names of the attributes and inputs for which a node is refused."""


def _conv_transpose(node: ir.Node) -> Iterator[str]:
    """Yield `pads` that differ at both ends, which cuDNN lacks, and SAME, unresolved before the run."""
    pads = schema.integers(node, "pads")
    if pads[: len(pads) // 2] != pads[len(pads) // 2 :]:
        yield "pads"
    if schema.text(node, "auto_pad").startswith("SAME"):
        yield "auto_pad"


def _arg_extremum(node: ir.Node) -> Iterator[str]:
    if schema.integer(node, "select_last_index"):
        yield "select_last_index"


def _recurrent(node: ir.Node, *activations: str) -> Iterator[str]:
    """Yield the features that cuDNN's recurrent layers lack: other activations and clipping."""
    yield from (name for name in _NEVER_TAKEN if name in node.attributes)
    names = [name.lower() for name in schema.texts(node, "activations")]
    if names != [*activations, *activations][: len(names)]:
        yield "activations"


_NEVER_TAKEN = ("activation_alpha", "activation_beta", "clip")


def _lstm(node: ir.Node) -> Iterator[str]:
    yield from _recurrent(node, "sigmoid", "tanh", "tanh")
    if schema.integer(node, "input_forget"):
        yield "input_forget"
    yield from _peepholes(node)


_PEEPHOLES = 7


def _peepholes(node: ir.Node) -> Iterator[str]:
    """Yield `P`, the weights of peepholes."""
    if len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES] is not None:
        yield "P"


def _gru(node: ir.Node) -> Iterator[str]:
    """Yield `linear_before_reset` unless it is 1, which is the order of operations in cuDNN."""
    yield from _recurrent(node, "sigmoid", "tanh")
    if schema.integer(node, "linear_before_reset") != 1:
        yield "linear_before_reset"


def _rnn(node: ir.Node) -> Iterator[str]:
    yield from _recurrent(node, "tanh")


REFUSED_BY_CUDA: Mapping[str, Refused] = {
    "ArgMax": _arg_extremum,
    "ArgMin": _arg_extremum,
    "ConvTranspose": _conv_transpose,
    "GRU": _gru,
    "LSTM": _lstm,
    "RNN": _rnn,
}
"""The refusals of the CUDA provider, by operator of the default domain."""


@dataclass(frozen=True, slots=True)
class Target:
    """A runtime.

    `table` names the table of its kernels (kernel_tables/); without one it has every kernel that the schemas
    allow. `together` are, by domain and operator, variables that must have one type though there are
    kernels for two. A target that `is_strict` refuses a model with a node for which it has no kernel; others
    run its ONNX function, or the node elsewhere. A result for onnxruntime (`is_onnxruntime`) must not run
    into its known faults (analysis.runtimes). `refusals` say, by operator, which nodes it refuses though it
    has a kernel. One that `fuses_half_scales` makes integer kernels of nodes between QuantizeLinear and
    DequantizeLinear in half as well; others recognise float32 alone. With
    `norms_in_float32`, one kernel computes a ReduceL2, and squares in float32. `longest_sum` is the most
    terms that sums, means and pools may add up, where its kernels accumulate in half. `longest_axes` are, by
    operator, the most positions along a spatial axis up to which its half kernel is right.
    """

    name: str
    table: str | None = None
    together: Mapping[Operator, frozenset[str]] = field(
        default_factory=dict[Operator, frozenset[str]], repr=False
    )
    is_strict: bool = False
    is_onnxruntime: bool = False
    refusals: Mapping[str, Refused] = field(default_factory=dict[str, Refused], repr=False)
    fuses_half_scales: bool = False
    norms_in_float32: bool = False
    longest_sum: int | None = None
    longest_axes: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)

    def support(self, domain: str, operator: str, signature: Signature, half: str) -> Support | None:
        """Return the runtime's kernels for an operator; None where only its schema restricts it.

        Where there is no half kernel, half would cost a copy to another device and back.
        """
        if self.table is None:
            return None
        table = kernel_table.load(self.table)
        return kernel_table.support(table, domain, operator, signature, half, expands=not self.is_strict)

    def serves(self, domain: str, operator: str, version: int) -> bool:
        """Return whether the runtime has kernels of any types for a version of an operator."""
        return self.table is None or kernel_table.serves(
            kernel_table.load(self.table), domain, operator, version
        )

    def joined(
        self, domain: str, operator: str, support: Support | None, half: str
    ) -> tuple[frozenset[str], ...]:
        """Return groups of an operator's variables that must be half together or not at all."""
        variables = self.together.get((domain, operator))
        return (*(support.joined(half) if support else ()), *([variables] if variables else ()))


_ATTENTION: Mapping[tuple[str, str], frozenset[str]] = {("", "Attention"): frozenset(("T1", "T2", "U"))}
"""Without a kernel Attention runs as ONNX's function, a MatMul of which reads queries and values."""

ANY = Target("any", together=_ATTENTION)
"""A runtime with every kernel that the schemas allow."""

_DATA_AND_SCALE = frozenset(("T", "V"))
ONNXRUNTIME_CUDA = Target(
    "onnxruntime-cuda",
    table="onnxruntime_cuda",
    together={
        ("", "RMSNormalization"): _DATA_AND_SCALE,
        ("", "SimplifiedLayerNormalization"): _DATA_AND_SCALE,
        **_ATTENTION,
    },
    is_onnxruntime=True,
    refusals=REFUSED_BY_CUDA,
    norms_in_float32=True,
)
"""onnxruntime 1.31's CUDA provider, by the kernels that it registers. Norms whose output has the type of the
scale would be half on one side alone, and need a Cast on the other.
"""

ONNXRUNTIME_WEBGPU = Target(
    "onnxruntime-webgpu",
    table="onnxruntime_webgpu",
    together=_ATTENTION,
    is_onnxruntime=True,
    longest_sum=64,
    longest_axes={"ConvTranspose": 2048},
)
"""onnxruntime's WebGPU provider, as in browsers, by the kernels that onnxruntime-ep-webgpu 0.4.0 registers.
They accumulate in half; reductions have 64 lanes, so that up to 64 terms are added in pairs. ConvTranspose
computes positions in half, which ends to count at 2048 (microsoft/onnxruntime#28976).
"""

TENSORRT = Target(
    "tensorrt",
    table="tensorrt",
    together=_ATTENTION,
    is_strict=True,
    refusals={"LSTM": _peepholes},
    fuses_half_scales=True,
)
"""TensorRT, strongly typed from version 11 on, by what the parser and the compiler of TensorRT for RTX take
(benchmarks/tensorrt_kernels.py). Normalisations accumulate in float32; for matrix products the builder
chooses, by types and speed, a type of at least the range of the inputs (NVIDIA's "Precision Control", 11.2).
"""

BY_NAME = {target.name: target for target in (ONNXRUNTIME_CUDA, ONNXRUNTIME_WEBGPU, TENSORRT, ANY)}


def named(name: str) -> Target:
    """Return the target of that name; OptionError for any other."""
    if name not in BY_NAME:
        raise OptionError(f"{name} is not a known target", remedy=f"choose one of {', '.join(BY_NAME)}")
    return BY_NAME[name]
