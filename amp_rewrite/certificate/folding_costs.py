"""How much it costs to compute what is folded: a few small values may be expanded to any size."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt, prod

from onnx import GraphProto, NodeProto, ValueInfoProto, shape_inference
from onnx import ModelProto as Model

from amp_rewrite.certificate.pairs import DifferentError

MOST = 1 << 26
"""The elements of all values that are computed for one model at most: 256 MiB of float32."""

MOST_WORK = 1 << 36
"""The products and sums of all of them: some seconds."""


def refuse(model: Model) -> None:
    """DifferentError for a model without inputs that would take long to compute, or much memory."""
    try:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception as error:  # of many kinds
        raise DifferentError("the sizes of what is folded are not known") from error
    sizes = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    made = {info.name: _size(info) for info in (*graph.value_info, *graph.output)}
    if any(name not in made for node in graph.node for name in node.output if name):
        raise DifferentError("the sizes of what is folded are not known")
    if sum(made.values()) > MOST or _work(graph, {**sizes, **made}) > MOST_WORK:
        raise DifferentError("what is folded is too large to compute anew")


def _size(info: ValueInfoProto) -> int:
    kind = info.type.tensor_type
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        raise DifferentError("the sizes of what is folded are not known")
    return prod(dim.dim_value for dim in kind.shape.dim)


def _work(graph: GraphProto, sizes: Mapping[str, int]) -> int:
    return sum(_of_node(node, sizes) for node in graph.node)


def _of_node(node: NodeProto, sizes: Mapping[str, int]) -> int:
    read = [sizes.get(name, 0) for name in node.input]
    made = sum(sizes.get(name, 0) for name in node.output)
    if node.op_type in _PRODUCTS and len(read) > 1:
        return isqrt(read[0] * read[1] * made)  # of MK, KN and MN elements
    return made * max(read, default=0) if node.op_type in _SUMS else made


_PRODUCTS = frozenset("Gemm MatMul MatMulInteger QLinearMatMul".split())
_SUMS = frozenset(
    """
    Attention AveragePool Col2Im Conv ConvInteger ConvTranspose DFT DeformConv Det Einsum GRU LRN LSTM LpPool
    MaxPool MaxRoiPool NonMaxSuppression QLinearConv RNN RoiAlign STFT
    """.split()
)
"""Operators that may read all elements of an input for each element that they make."""
