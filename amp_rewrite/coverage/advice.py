"""Advice on Tensor Cores: whether a device has them for a half type, and sizes of products to pad.

Since cuBLAS 11.0 and cuDNN 7.6.3 Tensor Cores are used for all sizes; they are most efficient where the
dimensions of a product in half are multiples of 8, that is, of 16 bytes (NVIDIA, Matrix Multiplication
Background User's Guide, "Tensor Core Requirements").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.coverage import counts
from amp_rewrite.coverage.counts import Precision
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import Layouts
from amp_rewrite.policy.devices import Device
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.text import NAMED, share, some

STEP = 8


@dataclass(frozen=True, slots=True)
class Padding:
    """A product in half with `sizes` that are no multiples of 8, and its share of FLOPs, 0 to 1, if known."""

    node: str
    operator: str
    sizes: tuple[int, ...]
    flop_share: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on a model, none of which is carried out: whether the device has Tensor Cores for the half type,
    the products that padding would speed up, those with most FLOPs first, and the open dimensions, whose
    sizes were not examined.
    """

    half: str
    device: str
    has_tensor_cores: bool
    paddings: tuple[Padding, ...] = ()
    open_dims: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield a line on the device, one for each of the first products, and one on open dimensions."""
        fast = f"has Tensor Cores for {self.half}, fastest where sizes are multiples of {STEP}"
        yield f"{self.device} {fast if self.has_tensor_cores else f'has no Tensor Cores for {self.half}'}"
        texts = [f"{each.operator} '{each.node}' has {_in_words(each)}" for each in self.paddings]
        yield from texts[:NAMED]
        if more := texts[NAMED:]:
            yield f"and {len(more):,} more products"
        if self.open_dims:
            yield f"open dimensions were not examined ({some(self.open_dims)}); --dim NAME=SIZE sets them"


def _in_words(padding: Padding) -> str:
    part = "" if padding.flop_share is None else f" ({share(padding.flop_share)} of FLOPs)"
    return ", ".join(f"{size:,} -> {-(-size // STEP) * STEP:,}" for size in padding.sizes) + part


def advise(flop_count: FlopCount, decisions: Decisions, half: str, device: Device) -> Advice:
    """Return advice on the products that run in half, or will after the decisions are applied."""
    has_tensor_cores, layouts = device.is_fast(half), Layouts(flop_count.model)
    chosen = decisions.half_nodes
    paddings: list[Padding] = []
    for node in every_node(flop_count.model.graph) if has_tensor_cores else ():
        is_half = node in chosen or counts.of_node(node, flop_count.types, layouts) is Precision.HALF
        if sizes := [size for size in _sizes(node, flop_count) if is_half and size > 1 and size % STEP]:
            part = (flop_count.flops.get(node) or 0) / flop_count.total if flop_count.total else None
            written = schema.written(node.domain, node.op_type)
            paddings.append(Padding(pinned_as(node), written, tuple(dict.fromkeys(sizes)), part))
    paddings.sort(key=lambda padding: -(padding.flop_share or 0))
    return Advice(half, device.name, has_tensor_cores, tuple(paddings), flop_count.shapes.assumed)


def _sizes(node: ir.Node, flop_count: FlopCount) -> Sequence[int]:
    """Return the rows, inner size and columns of a product, or the channels of a convolution; nothing for one
    with a vector or with a filter for each channel, which uses no Tensor Cores, and for other nodes. What is
    not stored is left out where dimensions are open.
    """
    if record_of(node).channel is None:
        return ()
    is_open = bool(flop_count.shapes.assumed)
    known = (None if is_open and stored_as(value) is None else value for value in node.inputs[:2])
    a, b = (flop_count.shapes.of(value) or () for value in known)
    if node.op_type.startswith("Conv"):
        return () if b[1:2] == (1,) and schema.integer(node, "group", 1) > 1 else b[:2]
    return () if 1 in (len(a), len(b)) else (*a[-2:], *b[-2:])
