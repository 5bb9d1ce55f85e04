"""How much it costs to compute what is folded: a few small values may be expanded to any size."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt, prod

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, shape_inference

from amp_rewrite.certificate.certificate import DifferentError

MOST = 1 << 28
"""The bytes of all values that are computed for one model at most."""

MOST_WORK = 1 << 36
"""The products and sums of all of them: some seconds."""


def refuse(model: ModelProto) -> None:
    """DifferentError for a model without inputs that would take long to compute, or much memory."""
    try:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception as error:  # of many kinds
        raise DifferentError("the sizes of what is folded are not known") from error
    sizes = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    made = {name: _size(info) for name, info in infos.items()}
    if any(name not in made for node in graph.node for name in node.output if name):
        raise DifferentError("the sizes of what is folded are not known")
    size = sum(made[name] * _width(info) for name, info in infos.items())
    sizes |= made
    if size + _between(graph, sizes) > MOST or _work(graph, sizes) > MOST_WORK:
        raise DifferentError("what is folded is too large to compute anew")


def _size(info: ValueInfoProto) -> int:
    kind = info.type.tensor_type
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        raise DifferentError("the sizes of what is folded are not known")
    return prod(dim.dim_value for dim in kind.shape.dim)


def _width(info: ValueInfoProto) -> int:
    """The bytes of an element; 8 of one whose width is not known."""
    try:
        return helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).itemsize
    except (KeyError, TypeError, ValueError):
        return 8


def _between(graph: GraphProto, sizes: Mapping[str, int]) -> int:
    """The bytes that products of more than two factors may take on the way."""
    products = (node for node in graph.node if node.op_type == "Einsum" and len(node.input) > _TWO)
    return sum(8 * prod(sizes.get(name, 0) for name in node.input) for node in products)


_TWO = 2


def _work(graph: GraphProto, sizes: Mapping[str, int]) -> int:
    return sum(_of_node(node, sizes) for node in graph.node)


def _of_node(node: NodeProto, sizes: Mapping[str, int]) -> int:
    read = [sizes.get(name, 0) for name in node.input]
    made = sum(sizes.get(name, 0) for name in node.output)
    if node.op_type in _PRODUCTS and len(read) > 1:
        return max(isqrt(read[0] * read[1] * made), *read)  # of MK, KN and MN elements
    return made * max(read, default=0) if node.op_type in _SUMS else made


_PRODUCTS = frozenset("Einsum Gemm MatMul MatMulInteger QLinearMatMul".split())
_SUMS = frozenset(
    """
    Attention AveragePool Col2Im Conv ConvInteger ConvTranspose DFT DeformConv Det GRU LRN LSTM LpPool
    MaxPool MaxRoiPool NonMaxSuppression QLinearConv RNN RoiAlign STFT
    """.split()
)
"""Operators that may read all elements of an input for each element that they make."""
