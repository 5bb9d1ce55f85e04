"""FLOPs of products: matrices, convolutions, recurrent cells. One multiply-add is two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from amp_rewrite.flops.contrib_shapes import attribute, matrix
from amp_rewrite.flops.ports import Formula, Ports
from amp_rewrite.flops.protos import Shape


def convolution(weights: int) -> Formula:
    """Each element of the result is a product over a filter: channels of its group, times the kernel.

    (ONNX: W is M x C/group x k1 x k2 ...)
    """
    return lambda ports: 2 * math.prod(ports.made()) * math.prod(ports.read(weights)[1:])


def transposed(ports: Ports) -> int:
    """Each element of the input is multiplied with a filter (ONNX: W is C x M/group x k1 x k2 ...)."""
    return 2 * math.prod(ports.read(0)) * math.prod(ports.read(1)[1:])


def product(first: int = 0, second: int = 1) -> Formula:
    """Batches of M x K times K x N: 2 M N K, with FusedMatMul's flags that transpose."""

    def flops(ports: Ports) -> int:
        a, b = ports.read(first), ports.read(second)
        return 2 * math.prod(matrix(a, b, ports.node)) * _inner(a, ports.node)

    return flops


def _inner(a: Shape, node: ir.Node) -> int:
    """The dimension of A that is summed over."""
    if len(a) == 1 or not attribute(node, "transA"):
        return a[-1]
    return a[0] if attribute(node, "transBatchA") else a[-2]


def gemm(second: int = 1) -> Formula:
    """2 M N K of a product of matrices, either of which may be given transposed."""

    def flops(ports: Ports) -> int:
        a, b = ports.read(0), ports.read(second)
        return 2 * math.prod(a) * b[0 if attribute(ports.node, "transB") else 1]

    return flops


def packed(ports: Ports) -> int:
    """Products whose weights are packed in blocks: the attribute N says how wide they are."""
    return 2 * math.prod(ports.read(0)) * attribute(ports.node, "N")


def einsum(ports: Ports) -> int:
    """One for each operand and each setting of all indices: twice M N K for a product of matrices."""
    shapes = [ports.read(i) for i in range(len(ports.node.inputs))]
    return _contraction(ports.node.attributes["equation"].as_string(), shapes)


def recurrent(ports: Ports) -> int:
    """Every step multiplies input and state with the weights of all gates and directions (W and R)."""
    steps, batch = ports.read(0)[:2]
    return 2 * steps * batch * (math.prod(ports.read(1)) + math.prod(ports.read(2)))


_DOTS = "..."


def _contraction(equation: str, shapes: Sequence[Shape]) -> int:
    """An Einsum: for each setting of all indices, a product of the operands and its sum, one FLOP an operand.

    That is twice M N K for a matrix product. Raises ValueError when equation and shapes do not fit.
    """
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str | int, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in zip(_labels(term, len(shape)), shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)  # one broadcasts
    return len(terms) * math.prod(sizes.values())


def _labels(term: str, rank: int) -> list[str | int]:
    """A label for each dimension; those under an ellipsis are numbered from the last, as they broadcast."""
    if _DOTS not in term:
        return list(term)
    before, _, after = term.partition(_DOTS)
    hidden = rank - len(before) - len(after)
    return [*before, *range(-hidden, 0), *after]
