"""FLOPs of matrix products, convolutions and recurrent cells. One multiply-add is two FLOPs."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_rewrite.flops.contrib_shapes import matrix
from amp_rewrite.flops.port_shapes import Formula, PortShapes
from amp_rewrite.flops.type_protos import Shape
from amp_rewrite.onnx_types import attributes


def convolution(weights: int) -> Formula:
    """Each output element is a product with a filter (ONNX: W is M x C/group x k1 x k2 ...)."""
    return lambda ports: 2 * math.prod(ports.output()) * math.prod(ports.input(weights)[1:])


def transposed(ports: PortShapes) -> int:
    """ConvTranspose: each input element is multiplied by a filter (ONNX: W is C x M/group x k1 x k2 ...)."""
    return 2 * math.prod(ports.input(0)) * math.prod(ports.input(1)[1:])


def product(first: int = 0, second: int = 1) -> Formula:
    """Batches of M x K times K x N: 2 M N K; takes FusedMatMul's transposition flags into account."""

    def flops(ports: PortShapes) -> int:
        a, b = ports.input(first), ports.input(second)
        return 2 * math.prod(matrix(a, b, ports.node)) * _inner(a, ports.node)

    return flops


def _inner(a: Shape, node: ir.Node) -> int:
    """The contracted dimension of A."""
    if len(a) == 1 or not attributes.integer(node, "transA"):
        return a[-1]
    return a[0] if attributes.integer(node, "transBatchA") else a[-2]


def gemm(second: int = 1) -> Formula:
    """2 M N K of a matrix product, either operand of which may be transposed."""

    def flops(ports: PortShapes) -> int:
        a, b = ports.input(0), ports.input(second)
        return 2 * math.prod(a) * b[0 if attributes.integer(ports.node, "transB") else 1]

    return flops


def packed(ports: PortShapes) -> int:
    """Products by block-quantised weights, whose width is the attribute N."""
    return 2 * math.prod(ports.input(0)) * attributes.integer(ports.node, "N")


def einsum(ports: PortShapes) -> int:
    """One for each operand and each setting of all indices: 2 M N K for a matrix product.

    Raises ValueError when equation and shapes do not match.
    """
    equation = ports.node.attributes["equation"].as_string()
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str | int, int] = {}
    for i, term in zip(range(len(ports.node.inputs)), terms, strict=True):
        shape = ports.input(i)
        for label, size in zip(_labels(term, len(shape)), shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)  # a dimension of 1 is broadcast
    return len(terms) * math.prod(sizes.values())


_DOTS = "..."


def _labels(term: str, rank: int) -> list[str | int]:
    """A label for each dimension; those of an ellipsis are numbered from the last, as they broadcast."""
    if _DOTS not in term:
        return list(term)
    before, _, after = term.partition(_DOTS)
    hidden = rank - len(before) - len(after)
    return [*before, *range(-hidden, 0), *after]


def recurrent(ports: PortShapes) -> int:
    """Each step multiplies input and state by the weights of all gates and directions (W and R)."""
    steps, batch = ports.input(0)[:2]
    return 2 * steps * batch * (math.prod(ports.input(1)) + math.prod(ports.input(2)))
