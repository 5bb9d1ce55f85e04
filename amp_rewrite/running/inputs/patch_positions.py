"""The side of square images that a network of patches requires: it stores one position for each patch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import Consumers, NodeInput

_FIRST_SPATIAL = 2
_MOST_EXTRA_TOKENS = 2
"""Positions that belong to no patch: of a class token, and of a distillation token (DeiT)."""


def required_side(use: NodeInput, value: ir.Value, axis: int, consumers: Consumers) -> int | None:
    """The size that stored positions require for a spatial axis of images, where this use of `value` cuts
    them into patches; None if it does not, or if the positions are computed for any size.
    """
    weight = stored_as(use.input_at(1)) if use.key == ("Conv", 0) and use.reads(value) else None
    if weight is None:
        return None
    shape = tuple(weight.shape.numpy())
    if not _FIRST_SPATIAL <= axis < len(shape) or not _cuts(use.node, shape):
        return None
    counts = _position_counts(consumers.of(use.node.outputs[0]), channels=shape[0])
    sides = (_side(count) for count in counts)
    return next((side * shape[axis] for side in sides if side), None)


def _cuts(conv: ir.Node, shape: Sequence[int]) -> bool:
    """Whether the windows of a convolution lie side by side, without padding."""
    strides, pads = (conv.attributes.get_ints(name, ()) for name in ("strides", "pads"))
    return tuple(strides) == tuple(shape[_FIRST_SPATIAL:]) and not any(pads)


def _position_counts(uses: Sequence[NodeInput], channels: int) -> Iterator[int]:
    """The lengths of the tables that are added to the patches: [length, channels], with ones before."""
    for use in uses:
        other = use.input_at(1 - use.index) if use.operator == "Add" else None
        *_, length, width = (0, 0, *_stored_shape(other))
        if width == channels:
            yield length


def _stored_shape(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of what is stored, or looked up with stored indices in a stored table; else ()."""
    tensor = stored_as(value)
    if tensor is not None:
        return tuple(tensor.shape.numpy())
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Gather" or node.attributes.get_int("axis", 0):
        return ()
    table, indices = (stored_as(operand) for operand in (*node.inputs, None, None)[:2])
    if table is None or indices is None:
        return ()
    return (*indices.shape.numpy(), *table.shape.numpy()[1:])


def _side(length: int) -> int:
    """The side of a square of patches with this many positions; 0 if there is none."""
    roots = (math.isqrt(length - extra) for extra in range(min(length, _MOST_EXTRA_TOKENS) + 1))
    return next((root for extra, root in enumerate(roots) if root * root == length - extra), 0)
