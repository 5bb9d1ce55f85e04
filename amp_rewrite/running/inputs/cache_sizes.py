"""Sizes of past keys and values, [batch, heads, token, size of a head], that attention operators require."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import NodeInput

_HEADS, _TOKENS, _HEAD_SIZE = 1, 2, 3
"""Axes of past keys and values."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """Where an operator names its heads of keys; `packs`: queries, keys and values may come as one input."""

    query_heads: str
    key_heads: str
    packs: bool = False


_OPERATORS = {
    "com.microsoft:GroupQueryAttention": _Attention("num_heads", "kv_num_heads", packs=True),
    "com.microsoft:MultiHeadAttention": _Attention("num_heads", "num_heads"),
    "Attention": _Attention("q_num_heads", "kv_num_heads"),
}
_CACHES = {
    "com.microsoft:GroupQueryAttention": (3, 4),
    "com.microsoft:MultiHeadAttention": (6, 7),
    "Attention": (4, 5),
}
CACHE_INPUTS = tuple((operator, index) for operator, indices in _CACHES.items() for index in indices)
"""The inputs for past keys and values, by operator and position."""


def cache_size(use: NodeInput, axis: int, rank: int) -> int | None:
    """The size that attention requires for an axis of past keys or values; None if any will do."""
    attention = _OPERATORS[use.operator]
    heads = use.attribute(attention.key_heads)
    if rank <= _HEAD_SIZE or heads <= 0:
        return None
    if axis == _TOKENS:
        return window_size(use)
    return {_HEADS: heads, _HEAD_SIZE: _head_size(use, attention, heads)}.get(axis)


def window_size(use: NodeInput) -> int | None:
    """The tokens for which a past has room that is a sliding window (Gemma by onnxruntime-genai); None if it
    grows.
    """
    window = use.attribute("local_window_size") if use.attribute("sliding_window_cache") else 0
    return window if use.key in CACHE_INPUTS and window > 0 else None


def _head_size(use: NodeInput, attention: _Attention, heads: int) -> int | None:
    query_heads = use.attribute(attention.query_heads)
    is_packed = attention.packs and use.input_at(1) is None
    width = _width(use.input_at(0))
    parts = query_heads + 2 * heads if is_packed else query_heads
    return width // parts if width and parts > 0 and width % parts == 0 else None


def _width(value: ir.Value | None) -> int | None:
    """The size of the last axis: as declared, or that of the weight of the product that makes it."""
    declared = None if value is None or value.shape is None else (*value.shape, None)[len(value.shape) - 1]
    if isinstance(declared, int):
        return declared
    product = None if value is None else value.producer()
    if product is None or product.op_type != "MatMul":
        return None
    weight = stored_as((*product.inputs, None, None)[1])
    return None if weight is None else (0, *weight.shape.numpy())[-1]
