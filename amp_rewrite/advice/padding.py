"""Products in half with dimensions that Tensor Cores like less, and what it would cost to pad them.

Since cuBLAS 11.0 and cuDNN 7.6.3 Tensor Cores are used whatever the sizes; they are most efficient where
the dimensions of a product in float16 or bfloat16 are multiples of 8, that is, of 16 bytes (NVIDIA, Matrix
Multiplication Background User's Guide, "Tensor Core Requirements"; Convolutional Layers User's Guide;
Recurrent Layers User's Guide). Before these versions they were not used at all for other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.advice import products
from amp_rewrite.advice.measured import Measured
from amp_rewrite.advice.products import Shape, ShapeOf, Size
from amp_rewrite.colouring.patterns import pinned_as
from amp_rewrite.flops import shapes
from amp_rewrite.flops.flop_count import Work
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import schema

STEP = 8
"""Dimensions are best in multiples of this many elements of two bytes: 16 bytes (see above)."""

PROBE = 97
"""Open dimensions get this size for a second look: what changes with it is not known. A prime, so that what
is computed from it does not fall on the numbers that a size of 1 gives.
"""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension, the size that it has, and the next that is a multiple of 8."""

    name: str
    size: int
    padded: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Products of one operator with the same dimensions to pad.

    `nodes` are their names. `flop_share` is their part of the model's arithmetic, from 0 to 1, None where
    it is not known. Padded they would take `extra_flops` and their second operands `extra_bytes` more, as
    parts of what they take now.
    """

    operator: str
    nodes: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    flop_share: float | None
    extra_flops: float
    extra_bytes: float

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def find(measured: Measured, half: Container[ir.Node]) -> tuple[Padding, ...]:
    """The products among the nodes of `half` that padding would help, those with the most arithmetic first.

    Dimensions that are left open are not looked at.
    """
    shape_of = _known(measured)
    found: dict[_Alike, list[ir.Node]] = {}
    for graph in graphs(measured.model.graph):
        for node in graph:
            alike = _alike(node, shape_of) if node in half and products.is_product(node) else None
            if alike is not None:
                found.setdefault(alike, []).append(node)
    made = (_padding(alike, nodes, measured.work) for alike, nodes in found.items())
    return tuple(sorted(made, key=lambda padding: (-(padding.flop_share or 0), -len(padding.nodes))))


@dataclass(frozen=True, slots=True)
class _Alike:
    """What nodes have in common that are one line of advice."""

    operator: str
    dimensions: tuple[Dimension, ...]
    extra_flops: float
    extra_bytes: float


def _alike(node: ir.Node, shape_of: ShapeOf) -> _Alike | None:
    """What is to be padded in a node, and what that costs; None when there is nothing."""
    found: list[Dimension] = []
    before = products.cost(node, shape_of, lambda _, size: size or 1)
    after = products.cost(node, shape_of, _padder(found))
    if before is None or after is None or not found:
        return None
    return _Alike(
        schema.written(node.domain, node.op_type),
        tuple(found),
        after.flops / before.flops - 1,
        after.bytes / before.bytes - 1,
    )


def _padder(found: list[Dimension]) -> Callable[[str, Size], int]:
    def padded(name: str, size: Size) -> int:
        if size is None or size <= 1:  # a vector is no work for Tensor Cores, and padding makes it none
            return size or 1
        up = -(-size // STEP) * STEP
        if up != size:
            found.append(Dimension(name, size, up))
        return up

    return padded


def _padding(alike: _Alike, nodes: list[ir.Node], work: Work) -> Padding:
    here = sum(work.of(node) or 0 for node in nodes)
    return Padding(
        operator=alike.operator,
        nodes=tuple(pinned_as(node) for node in nodes),
        dimensions=alike.dimensions,
        flop_share=here / work.total if work.total else None,
        extra_flops=alike.extra_flops,
        extra_bytes=alike.extra_bytes,
    )


def _known(measured: Measured) -> ShapeOf:
    """Shapes with None for what depends on an open dimension: it is not the same with another size there."""
    counted = measured.work.shapes
    if not counted.assumed:
        return counted.of
    dims = {**measured.dims, **dict.fromkeys(counted.assumed, PROBE)}
    probed = shapes.infer(measured.model, measured.types, dims)

    def shape_of(value: ir.Value | None) -> Shape | None:
        one, other = counted.of(value), probed.of(value)
        if one is None or other is None or len(one) != len(other):
            return None
        return tuple(a if a == b else None for a, b in zip(one, other, strict=True))

    return shape_of
