"""Operators of ONNX whose outputs have the shapes of onnxruntime's own, which onnx cannot infer.

They keep sizes that are open, and their names; `flops.contrib_shapes` says the same of sizes that are all
numbers. What follows an operator that is not here has no shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from amp_rewrite.flops.node_inference import LIKE_FIRST
from amp_rewrite.onnx_types import attributes
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.onnx_types.element_types import Types

Naming = Callable[[ir.Value], str]
Nodes = Iterator[onnx.NodeProto]


def nodes_for(node: ir.Node, name: Naming, types: Types) -> Nodes:
    """Nodes that make outputs of the same shapes and types, of which the model declares no shapes; none where
    that cannot be said.
    """
    rule = _RULES.get(node.op_type) if node.domain in ("", CONTRIB) else None
    ports = _PORTS.get(node.op_type, (0,))
    outputs = [node.outputs[port] for port in ports if port < len(node.outputs)]
    if rule is None or not outputs or any(value.shape is not None for value in outputs):
        return
    like = f"{name(outputs[0])}//like"
    made = list(rule(node, name, like))
    for value in outputs if made else ():
        kind = types.get(value)
        if value.name and isinstance(kind, ir.TensorType):
            made.append(helper.make_node("Cast", [like], [name(value)], to=int(kind.dtype)))
    yield from made


def _first(node: ir.Node, name: Naming, like: str) -> Nodes:
    first = _given(node, 0)
    if first is not None:
        yield helper.make_node("Identity", [name(first)], [like])


def _unpacked(node: ir.Node, name: Naming, like: str) -> Nodes:
    """With keys of their own, queries have the shape of the result."""
    if _given(node, 1) is not None:
        yield from _first(node, name, like)


def _embedding(node: ir.Node, name: Naming, like: str) -> Nodes:
    """Rows of the embedding of words, one for each identifier."""
    ids, words = _given(node, 0), _given(node, 2)
    if ids is not None and words is not None:
        yield helper.make_node("Gather", [name(words), name(ids)], [like])


def _product(node: ir.Node, name: Naming, like: str) -> Nodes:
    one, other = _given(node, 0), _given(node, 1)
    if one is None or other is None or any(attributes.integer(node, f"transBatch{side}") for side in "AB"):
        return
    left = "ji" if attributes.integer(node, "transA") else "ij"
    right = "kj" if attributes.integer(node, "transB") else "jk"
    equation = f"...{left},...{right}->...ik"
    yield helper.make_node("Einsum", [name(one), name(other)], [like], equation=equation)


def _attention(node: ir.Node, name: Naming, like: str) -> Nodes:
    """The product with a part of the weights: those of queries, keys and values lie side by side."""
    read, weights = _given(node, 0), _given(node, 1)
    stored = weights.const_value if weights is not None else None
    if read is None or weights is None or stored is None or len(stored.shape) != 2:
        return
    sizes = node.attributes.get("qkv_hidden_sizes")
    is_given = sizes is not None and sizes.type == ir.AttributeType.INTS and sizes.value
    width = sizes.as_ints()[-1] if sizes is not None and is_given else stored.shape.numpy()[1] // 3
    bounds = [f"{like}{at}" for at in range(3)]
    for bound, number in zip(bounds, (0, width, 1), strict=True):  # from, to, along which axis
        tensor = numpy_helper.from_array(np.array([number], np.int64))
        yield helper.make_node("Constant", [], [bound], value=tensor)
    yield helper.make_node("Slice", [name(weights), *bounds], [f"{like}3"])
    yield helper.make_node("MatMul", [name(read), f"{like}3"], [like])


def _given(node: ir.Node, port: int) -> ir.Value | None:
    return node.inputs[port] if port < len(node.inputs) else None


_SUMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_PORTS: Mapping[str, tuple[int, ...]] = dict.fromkeys(_SUMS, (0, 3))
"""The outputs of that shape, where it is not the first alone."""

_RULES: Mapping[str, Callable[[ir.Node, Naming, str], Nodes]] = {
    **dict.fromkeys((*LIKE_FIRST, *_SUMS), _first),
    "Attention": _attention,
    "EmbedLayerNormalization": _embedding,
    "FusedMatMul": _product,
    "GroupQueryAttention": _unpacked,
}
