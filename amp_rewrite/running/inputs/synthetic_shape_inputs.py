"""Synthetic operands that determine shapes: shapes, axes, ends of slices, parts of splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import NodeInput
from amp_rewrite.running.inputs.input_spec import Array, InputSpec

SIDE = 4
"""The height and width in a synthetic shape: small, but enough to compute with."""
CHANNELS = 3


def by_use(spec: InputSpec) -> Array | None:
    """The value for the first operator that reads the input as a shape operand; None if there is none.

    A single number may be moved on its way; of several, only a part may arrive.
    """
    for use in spec.uses:
        if use.key in _OPERANDS and (spec.is_single or spec.feeds_directly(use)):
            numbers = _OPERANDS[use.key](spec, use)
            if numbers:
                return _shaped(spec, numbers)
    return None


def by_name(spec: InputSpec) -> Array | None:
    """A shape: the batch size of the other inputs, then channels, then small sides."""
    if not spec.words & {"size", "sizes", "shape"} or len(spec.shape) != 1:
        return None
    batch = next((s[0] for v, s in spec.all_shapes.items() if v is not spec.input.value and s), 1)
    return np.array([batch, CHANNELS, *[SIDE] * spec.length][: spec.length])


def _shaped(spec: InputSpec, numbers: Sequence[int]) -> Array:
    """The numbers; their minimum in all elements if the input has a different length."""
    return np.array(numbers) if spec.shape == (len(numbers),) else spec.full(min(numbers))


def _data(spec: InputSpec, use: NodeInput) -> tuple[int, ...]:
    return spec.shape_of(use.input_at(0)) or ()


def _doubled(spec: InputSpec, use: NodeInput) -> Sequence[int]:
    """The sizes of the data, doubled after batch and channels."""
    data = _data(spec, use)
    return [*data[:2], *(2 * size for size in data[2:])]


def _ends(spec: InputSpec, use: NodeInput) -> Sequence[int]:
    """The sizes of the sliced axes, so that nothing is cut off."""
    data, stored = _data(spec, use), stored_as(use.input_at(3))
    axes = np.ravel(stored.numpy()) if stored is not None else range(spec.length)
    return [data[axis] for axis in axes if -len(data) <= axis < len(data)]


def _parts(spec: InputSpec, use: NodeInput) -> Sequence[int]:
    """Equal parts, with the remainder in the last one."""
    data, axis = _data(spec, use), use.attribute("axis")
    if not -len(data) <= axis < len(data) or not spec.shape:
        return ()
    part, left = divmod(data[axis], spec.length)
    return [*[part] * (spec.length - 1), part + left]


def _flat(spec: InputSpec, _use: NodeInput) -> Sequence[int]:
    """A shape that is valid for every tensor: all elements along the first axis."""
    return [-1, *[1] * (spec.length - 1)]


def _first(spec: InputSpec, _use: NodeInput) -> Sequence[int]:
    return range(spec.length)


def _zeros(spec: InputSpec, _use: NodeInput) -> Sequence[int]:
    return [0] * spec.length


_OPERANDS: dict[tuple[str, int], Callable[[InputSpec, NodeInput], Sequence[int]]] = {
    ("Resize", 3): _doubled,
    ("Reshape", 1): _flat,
    ("Slice", 1): _zeros,
    ("Slice", 2): _ends,
    ("Slice", 3): _first,
    ("Unsqueeze", 1): _first,
    ("CumSum", 1): _zeros,
    ("CumProd", 1): _zeros,
    ("Pad", 1): _zeros,
    **{(operator, 1): _parts for operator in ("Split", "SplitToSequence")},
}
"""Node inputs that determine shapes, and valid values; empty if the shape of the data is unknown."""
