"""Operators of ONNX whose outputs have the shapes of onnxruntime's own, which onnx cannot infer.

By its documentation (ContribOperators.md). What follows an operator that is not here has no shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from amp_rewrite.onnx_types.element_types import Types

Naming = Callable[[ir.Value], str]
Nodes = Iterator[onnx.NodeProto]

_LIKE_FIRST = {
    ("", "SimplifiedLayerNormalization"): (0,),
    **{
        ("com.microsoft", operator): (0,)
        for operator in ("BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding")
    },
    ("com.microsoft", "SkipLayerNormalization"): (0, 3),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): (0, 3),
}
"""The outputs that have the shape of the first input."""


def nodes_for(node: ir.Node, name: Naming, types: Types) -> Nodes:
    """Nodes that make outputs of the same shapes and types, of which the model declares no shapes; none where
    that cannot be said.
    """
    key = (node.domain, node.op_type)
    outputs = [node.outputs[port] for port in _LIKE_FIRST.get(key, (0,)) if port < len(node.outputs)]
    if not outputs or any(value.shape is not None for value in outputs):
        return
    rule = _RULES.get(key, _first if key in _LIKE_FIRST else None)
    like = f"{name(outputs[0])}//like"
    made = list(rule(node, name, like)) if rule is not None else []
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
    if one is None or other is None or any(_attribute(node, f"transBatch{side}", 0) for side in "AB"):
        return
    left = "ji" if _attribute(node, "transA", 0) else "ij"
    right = "kj" if _attribute(node, "transB", 0) else "jk"
    equation = f"...{left},...{right}->...ik"
    yield helper.make_node("Einsum", [name(one), name(other)], [like], equation=equation)


def _attention(node: ir.Node, name: Naming, like: str) -> Nodes:
    """The product with a part of the weights: those of queries, keys and values lie side by side."""
    read, weights = _given(node, 0), _given(node, 1)
    stored = weights.const_value if weights is not None else None
    if read is None or weights is None or stored is None or len(stored.shape) != 2:
        return
    sizes = _attribute(node, "qkv_hidden_sizes", [stored.shape.numpy()[1] // 3] * 3)
    bounds = [f"{like}{at}" for at in range(3)]
    for bound, number in zip(bounds, (0, sizes[-1], 1), strict=True):  # from, to, along which axis
        tensor = numpy_helper.from_array(np.array([number], np.int64))
        yield helper.make_node("Constant", [], [bound], value=tensor)
    yield helper.make_node("Slice", [name(weights), *bounds], [f"{like}3"])
    yield helper.make_node("MatMul", [name(read), f"{like}3"], [like])


def _given(node: ir.Node, port: int) -> ir.Value | None:
    return node.inputs[port] if port < len(node.inputs) else None


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    """What an attribute says; the default where it is not there, or of another type."""
    found = node.attributes.get(name)
    kind = ir.AttributeType.INT if isinstance(default, int) else ir.AttributeType.INTS
    return default if found is None or found.type != kind or found.is_ref() else found.value or default


_RULES: Mapping[tuple[str, str], Callable[[ir.Node, Naming, str], Nodes]] = {
    ("com.microsoft", "Attention"): _attention,
    ("com.microsoft", "EmbedLayerNormalization"): _embedding,
    ("com.microsoft", "FusedMatMul"): _product,
    ("com.microsoft", "GroupQueryAttention"): _unpacked,
}
