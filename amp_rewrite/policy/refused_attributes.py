"""What onnxruntime's CUDA provider refuses though it has a kernel: nodes with certain attributes or inputs.

They run on the CPU in float32 models too. In half the CPU provider has mostly no kernel for them, and
onnxruntime adds Casts and copies around them. No table of kernels shows these; the rows are from
`CUDAExecutionProvider::GetCapability` in onnxruntime/core/providers/cuda/cuda_execution_provider.cc
(`RNNNeedFallbackToCPU`, `ConvTransposeNeedFallbackToCPU`, `ArgMaxOrArgMinNeedFallbackToCPU`), each seen with
onnxruntime-gpu 1.31.1 (tests/test_refused_attributes.py). A Cast to strings is refused as well, and is never
half; `Conv` and pooling take any padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.onnx_types import attributes

Refused = Callable[[ir.Node], Iterator[str]]
"""The attributes and inputs of a node for which it is refused, by name."""


def _conv_transpose(node: ir.Node) -> Iterator[str]:
    """cuDNN pads both ends alike; what SAME comes to is not known before the run."""
    pads = attributes.integers(node, "pads")
    if pads[: len(pads) // 2] != pads[len(pads) // 2 :]:
        yield "pads"
    if attributes.text(node, "auto_pad").startswith("SAME"):
        yield "auto_pad"


def _arg_extremum(node: ir.Node) -> Iterator[str]:
    if attributes.integer(node, "select_last_index"):
        yield "select_last_index"


def _recurrent(node: ir.Node, *activations: str) -> Iterator[str]:
    """What cuDNN's recurrent layers lack: other activations than these, in either direction, and clipping."""
    yield from (name for name in _NEVER_TAKEN if name in node.attributes)
    said = [name.lower() for name in attributes.texts(node, "activations")]
    if said != [*activations, *activations][: len(said)]:
        yield "activations"


_NEVER_TAKEN = ("activation_alpha", "activation_beta", "clip")


def _lstm(node: ir.Node) -> Iterator[str]:
    yield from _recurrent(node, "sigmoid", "tanh", "tanh")
    if attributes.integer(node, "input_forget"):
        yield "input_forget"
    if len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES] is not None:
        yield "P"


_PEEPHOLES = 7


def _gru(node: ir.Node) -> Iterator[str]:
    """cuDNN applies the linear transformation before the reset gate; ONNX's default is after."""
    yield from _recurrent(node, "sigmoid", "tanh")
    if attributes.integer(node, "linear_before_reset") != 1:
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
"""By operator of the default domain: for what the CUDA provider refuses a node."""
