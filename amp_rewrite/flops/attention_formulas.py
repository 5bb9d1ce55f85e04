"""FLOPs of ONNX's and onnxruntime's attention operators; masked scores count like all others."""

from __future__ import annotations

import math

from amp_rewrite.flops.port_shapes import Formula, PortShapes
from amp_rewrite.onnx_types import attributes


def attention(ports: PortShapes) -> int:
    """ai.onnx Attention: the scores and the weighted sum of the values, 2 B H Sq Skv (Dqk + Dv).

    The last axis of a 3D input holds all heads; past keys precede the new ones.
    """
    q, k, v = (ports.input(i) for i in range(3))
    heads = q[1] if len(q) == 4 else attributes.integer(ports.node, "q_num_heads")
    kept = k[1] if len(k) == 4 else attributes.integer(ports.node, "kv_num_heads")
    queries, length = q[-2], k[-2] + (ports.input(4)[2] if ports.has(4) else 0)
    size = q[-1] if len(q) == 4 else q[-1] // heads
    value = v[-1] if len(v) == 4 else v[-1] // kept
    return 2 * q[0] * heads * queries * length * (size + value)


def projected_attention(past: int) -> Formula:
    """com.microsoft Attention: the product with the weights of Q, K and V, then attention itself."""

    def flops(ports: PortShapes) -> int:
        (batch, length, _), weights = ports.input(0), ports.input(1)
        q, _, v = ports.node.attributes.get_ints("qkv_hidden_sizes", (weights[1] // 3,) * 3)
        keys = length + (ports.input(past)[3] if ports.has(past) else 0)
        return 2 * batch * length * math.prod(weights) + 2 * batch * length * keys * (q + v)

    return flops


def multi_head(past: int) -> Formula:
    """com.microsoft MultiHeadAttention: 3D inputs with all heads, or query, key and value packed in one."""

    def flops(ports: PortShapes) -> int:
        q = ports.input(0)
        batch, queries = q[:2]
        if len(q) == 5:
            return 2 * batch * queries * queries * 2 * q[2] * q[4]
        k = ports.input(1)
        keys = k[2] if len(k) == 4 else k[1]
        width = q[-1]
        v = ports.input(2) if ports.has(2) else None
        value = width if v is None else v[1] * v[3] if len(v) == 4 else v[-1]
        keys += ports.input(past)[2] if ports.has(past) and len(k) != 4 else 0
        return 2 * batch * queries * keys * (width + value)

    return flops


def grouped(ports: PortShapes) -> int:
    """com.microsoft GroupQueryAttention: every query head attends to all keys, past ones included."""
    batch, queries, width = ports.input(0)
    heads, kept = attributes.integer(ports.node, "num_heads"), attributes.integer(ports.node, "kv_num_heads")
    size = width // heads if ports.has(1) else width // (heads + 2 * kept)
    keys = queries + (ports.input(3)[2] if ports.has(3) else 0)
    return 2 * batch * heads * queries * keys * 2 * size
