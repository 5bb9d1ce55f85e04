"""Products in half whose dimensions Tensor Cores handle less efficiently, and the cost of padding them.

Since cuBLAS 11.0 and cuDNN 7.6.3 Tensor Cores are used for all sizes; they are most efficient where the
dimensions of a product in float16 or bfloat16 are multiples of 8, that is, of 16 bytes (NVIDIA, Matrix
Multiplication Background User's Guide, "Tensor Core Requirements"; Convolutional Layers User's Guide;
Recurrent Layers User's Guide). Earlier versions did not use them for other sizes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.advice import product_dimensions
from amp_rewrite.advice.product_dimensions import KnownShape, ShapeOf, Size
from amp_rewrite.flops import shapes
from amp_rewrite.flops.flop_count import FlopCount
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.node_patterns import pinned_as

STEP = 8
"""Dimensions are best in multiples of this many elements of two bytes: 16 bytes (see above)."""

PROBE = 97
"""The size of open dimensions in a second shape inference: a dimension that changes with it is unknown. A
prime, so that sizes computed from it differ from those computed from a size of 1.
"""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension, its size, and the next multiple of 8."""

    name: str
    size: int
    padded: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Products of one operator with the same dimensions to pad.

    `nodes` are the names of the nodes. `flop_share` is their share of the model's FLOPs, from 0 to 1, None
    where unknown. Padding adds `extra_flops` and, to the bytes of their second operands, `extra_bytes`, both
    relative to the present amounts.
    """

    operator: str
    nodes: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    flop_share: float | None
    extra_flops: float
    extra_bytes: float


def find(counted: FlopCount, half: Container[ir.Node]) -> tuple[Padding, ...]:
    """The products among the nodes of `half` that padding would speed up, those with most FLOPs first.

    Dimensions that are open, or computed from open ones, are not examined.
    """
    shape_of = _known_shapes(counted)
    found: dict[Padding, list[ir.Node]] = {}
    for node in every_node(counted.model.graph):
        if node in half and (padding := _padding(node, shape_of)) is not None:
            found.setdefault(padding, []).append(node)
    paddings = (_with_nodes(padding, nodes, counted) for padding, nodes in found.items())
    return tuple(sorted(paddings, key=lambda padding: (-(padding.flop_share or 0), -len(padding.nodes))))


def _padding(node: ir.Node, shape_of: ShapeOf) -> Padding | None:
    """How to pad a node, and the cost, without the node's name; None where there is nothing to pad."""
    found: list[Dimension] = []
    before = product_dimensions.cost(node, shape_of, lambda _, size: size or 1)
    after = product_dimensions.cost(node, shape_of, _padder(found))
    if before is None or after is None or not found:
        return None
    return Padding(
        operator=schema.written(node.domain, node.op_type),
        nodes=(),
        dimensions=tuple(found),
        flop_share=None,
        extra_flops=after.flops / before.flops - 1,
        extra_bytes=after.bytes / before.bytes - 1,
    )


def _with_nodes(padding: Padding, nodes: list[ir.Node], counted: FlopCount) -> Padding:
    flops = sum(counted.flops.get(node) or 0 for node in nodes)
    share = flops / counted.total if counted.total else None
    return replace(padding, nodes=tuple(map(pinned_as, nodes)), flop_share=share)


def _padder(found: list[Dimension]) -> Callable[[str, Size], int]:
    def padded(name: str, size: Size) -> int:
        if size is None or size <= 1:  # vectors do not use Tensor Cores, padded or not
            return size or 1
        up = -(-size // STEP) * STEP
        if up != size:
            found.append(Dimension(name, size, up))
        return up

    return padded


def _known_shapes(counted: FlopCount) -> ShapeOf:
    """Shapes with None for dimensions that depend on an open one, that is, change with its size."""
    found = counted.shapes
    if not found.assumed:
        return found.of
    dims = {**counted.dims, **dict.fromkeys(found.assumed, PROBE)}
    probed = shapes.infer(counted.model, counted.types, dims)

    def shape_of(value: ir.Value | None) -> KnownShape | None:
        one, other = found.of(value), probed.of(value)
        if one is None or other is None or len(one) != len(other):
            return None
        return tuple(a if a == b else None for a, b in zip(one, other, strict=True))

    return shape_of
