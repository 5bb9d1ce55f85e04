"""FLOPs of products (matrices, convolutions, recurrent cells, attention), pools and transforms, from the
shapes of a node. One multiply-add is two FLOPs; fused biases and activations do not count.

We found no library for this: onnx-tool 1.0.1 counts a ConvTranspose of 2,160 multiply-adds as 18,225, fails
on LSTM, and does not know Attention; onnx-opcounter 0.0.4 has to run the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ports:
    """The shapes of a node's inputs and outputs, None where unknown, and its attributes; an input that is
    left out has no shape in `inputs`.
    """

    inputs: Mapping[int, Shape | None]
    outputs: Sequence[Shape | None]
    attributes: Mapping[str, Any]

    def input(self, port: int) -> Shape:
        """Return the shape of an input; LookupError where it is unknown."""
        return _known(self.inputs[port])

    def output(self, port: int = 0) -> Shape:
        """Return the shape of an output; LookupError where it is unknown."""
        return _known(self.outputs[port])

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute, or the default."""
        return self.attributes.get(name, default)


def _known(shape: Shape | None) -> Shape:
    if shape is None:
        raise LookupError
    return shape


Formula = Callable[[Ports], int]
"""FLOPs of a node; raises LookupError when it needs a shape that is unknown."""
INTERPOLATED = 8
"""FLOPs of an interpolated element: four neighbours, a multiply-add each."""


# FLOPs of ONNX's and onnxruntime's attention operators; masked scores count like all others.


def attention(ports: Ports) -> int:
    """ai.onnx Attention: the scores and the weighted sum of the values, 2 B H Sq Skv (Dqk + Dv).

    The last axis of a 3D input holds all heads; past keys precede the new ones.
    """
    q, k, v = (ports.input(i) for i in range(3))
    heads = q[1] if len(q) == 4 else ports.integer("q_num_heads")
    kv_heads = k[1] if len(k) == 4 else ports.integer("kv_num_heads")
    queries, length = q[-2], k[-2] + (ports.input(4)[2] if 4 in ports.inputs else 0)
    size = q[-1] if len(q) == 4 else q[-1] // heads
    value = v[-1] if len(v) == 4 else v[-1] // kv_heads
    return 2 * q[0] * heads * queries * length * (size + value)


def projected_attention(past: int) -> Formula:
    """com.microsoft Attention: the product with the weights of Q, K and V, then attention itself."""

    def flops(ports: Ports) -> int:
        (batch, length, _), weights = ports.input(0), ports.input(1)
        q, _, v = ports.attributes.get("qkv_hidden_sizes", (weights[1] // 3,) * 3)
        keys = length + (ports.input(past)[3] if past in ports.inputs else 0)
        return 2 * batch * length * math.prod(weights) + 2 * batch * length * keys * (q + v)

    return flops


def multi_head(past: int) -> Formula:
    """com.microsoft MultiHeadAttention: 3D inputs with all heads, or query, key and value packed in one."""

    def flops(ports: Ports) -> int:
        q = ports.input(0)
        batch, queries = q[:2]
        if len(q) == 5:
            return 2 * batch * queries * queries * 2 * q[2] * q[4]
        k = ports.input(1)
        keys = k[2] if len(k) == 4 else k[1]
        width = q[-1]
        v = ports.input(2) if 2 in ports.inputs else None
        value = width if v is None else v[1] * v[3] if len(v) == 4 else v[-1]
        keys += ports.input(past)[2] if past in ports.inputs and len(k) != 4 else 0
        return 2 * batch * queries * keys * (width + value)

    return flops


def grouped(ports: Ports) -> int:
    """com.microsoft GroupQueryAttention: every query head attends to all keys, past ones included."""
    batch, queries, width = ports.input(0)
    heads, kv_heads = ports.integer("num_heads"), ports.integer("kv_num_heads")
    size = width // heads if 1 in ports.inputs else width // (heads + 2 * kv_heads)
    keys = queries + (ports.input(3)[2] if 3 in ports.inputs else 0)
    return 2 * batch * heads * queries * keys * 2 * size


# FLOPs of operators other than products: a constant for each element, and transforms.


def pooled(ports: Ports) -> int:
    """Return one for each element of each pooling window."""
    kernel = ports.attributes["kernel_shape"]
    return math.prod(ports.output()) * math.prod(kernel)


def local_norm(ports: Ports) -> int:
    """LRN: a sum of squares over `size` channels for each element."""
    return 2 * math.prod(ports.input(0)) * ports.integer("size")


def resize(ports: Ports) -> int:
    """Return INTERPOLATED for each element; the mode `nearest` does no arithmetic."""
    if ports.attributes.get("mode", "nearest") == "nearest":
        return 0
    return INTERPOLATED * math.prod(ports.output())


def fourier(ports: Ports) -> int:
    """Return 5 n log2 n of a fast Fourier transform, for each signal (Cooley and Tukey; FFTW's count)."""
    shape = ports.output()
    axis = ports.integer("axis", -2)
    length = ports.input(0)[axis]
    signals = math.prod(shape) // max(shape[axis], 1) // shape[-1]
    return _transform(length) * signals


def short_fourier(ports: Ports) -> int:
    """Return one transform for each frame: the output of STFT is batch x frames x bins x 2."""
    batch, frames, bins, _ = ports.output()
    two_sided = not ports.integer("onesided", 1)
    return batch * frames * _transform(bins if two_sided else 2 * (bins - 1))


def _transform(length: int) -> int:
    return round(5 * length * math.log2(length)) if length > 1 else 0


def determinant(ports: Ports) -> int:
    """Return two thirds of n cubed for each matrix: Gaussian elimination."""
    shape = ports.input(0)
    return round(2 / 3 * math.prod(shape) * shape[-1])


# FLOPs of matrix products, convolutions and recurrent cells. One multiply-add is two FLOPs.


def convolution(weights: int) -> Formula:
    """Return a product with a filter for each output element (ONNX: W is M x C/group x k1 x k2 ...)."""
    return lambda ports: 2 * math.prod(ports.output()) * math.prod(ports.input(weights)[1:])


def transposed(ports: Ports) -> int:
    """Return a product with a filter for each input element (ONNX: W is C x M/group x k1 x k2 ...)."""
    return 2 * math.prod(ports.input(0)) * math.prod(ports.input(1)[1:])


def product(first: int = 0, second: int = 1) -> Formula:
    """Return 2 M N K for batches of M x K times K x N, respecting FusedMatMul's transposition flags."""

    def flops(ports: Ports) -> int:
        a, b = ports.input(first), ports.input(second)
        inner = a[-1]
        if len(a) > 1 and ports.integer("transA"):
            inner = a[0] if ports.integer("transBatchA") else a[-2]
        return 2 * math.prod(matrix(a, b, ports.integer)) * inner

    return flops


def matrix(a: Shape, b: Shape, flag: Callable[[str], int]) -> Shape:
    """Return the shape of a matrix product, respecting FusedMatMul's transposition flags."""
    if len(a) == 1:
        return matrix((1, *a), b, flag)[1:]  # a vector is a matrix of one row, which is removed again
    if len(b) == 1:
        return matrix(a, (*b, 1), flag)[:-1]
    a, b = _turned(a, "A", flag), _turned(b, "B", flag)
    return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


def _turned(shape: Shape, which: str, flag: Callable[[str], int]) -> Shape:
    if flag(f"transBatch{which}"):
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if flag(f"trans{which}") else shape


def gemm(second: int = 1) -> Formula:
    """Return 2 M N K of a matrix product, either operand of which may be transposed."""

    def flops(ports: Ports) -> int:
        a, b = ports.input(0), ports.input(second)
        return 2 * math.prod(a) * b[0 if ports.integer("transB") else 1]

    return flops


def packed(ports: Ports) -> int:
    """Return the FLOPs of a product by block-quantised weights, whose width is the attribute N."""
    return 2 * math.prod(ports.input(0)) * ports.integer("N")


def einsum(ports: Ports) -> int:
    """Return one for each operand and each setting of all indices: 2 M N K for a matrix product.

    Raises ValueError when equation and shapes do not match.
    """
    equation = ports.attributes["equation"]
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str | int, int] = {}
    for i, term in zip(sorted(ports.inputs), terms, strict=True):
        shape = ports.input(i)
        for label, size in zip(_labels(term, len(shape)), shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)  # a dimension of 1 is broadcast
    return len(terms) * math.prod(sizes.values())


_DOTS = "..."


def _labels(term: str, rank: int) -> list[str | int]:
    """Return a label for each dimension; those of an ellipsis are numbered from the last, to broadcast."""
    if _DOTS not in term:
        return list(term)
    before, _, after = term.partition(_DOTS)
    hidden = rank - len(before) - len(after)
    return [*before, *range(-hidden, 0), *after]


def recurrent(ports: Ports) -> int:
    """Return the products of input and state with all weights of gates and directions, for each step."""
    steps, batch = ports.input(0)[:2]
    return 2 * steps * batch * (math.prod(ports.input(1)) + math.prod(ports.input(2)))
