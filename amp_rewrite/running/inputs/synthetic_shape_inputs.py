"""Integers that say how tensors are laid out: shapes, axes, ends of slices, parts of splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import NodeInput
from amp_rewrite.running.inputs.input_spec import Array, InputSpec

SIDE = 4
"""The height and width that a shape asks for: enough to compute with."""
CHANNELS = 3


def by_port(wanted: InputSpec) -> Array | None:
    """What the first operator that takes a layout wants; None where the input goes to none.

    A single number may be moved on its way; of more, only a part may get there.
    """
    single = all(size == 1 for size in wanted.shape)
    ports = (p for p in wanted.uses if p.key in _LAYOUTS and (single or wanted.feeds_directly(p)))
    made = (_LAYOUTS[port.key](wanted, port) for port in ports)
    return next((_shaped(wanted, numbers) for numbers in made if numbers), None)


def by_name(wanted: InputSpec) -> Array | None:
    """A shape: the batch of the other inputs, then channels, then sides that are small."""
    if not wanted.words & {"size", "sizes", "shape"} or len(wanted.shape) != 1:
        return None
    batch = next((s[0] for v, s in wanted.all_shapes.items() if v is not wanted.input.value and s), 1)
    return np.array([batch, CHANNELS, *[SIDE] * wanted.shape[0]][: wanted.shape[0]])


def _shaped(wanted: InputSpec, numbers: Sequence[int]) -> Array:
    """The numbers, or the smallest of them everywhere where the input is not as long as they are."""
    return np.array(numbers) if wanted.shape == (len(numbers),) else wanted.full(min(numbers))


_Layout = Callable[[InputSpec, NodeInput], Sequence[int]]


def _count(wanted: InputSpec) -> int:
    return wanted.shape[0] if wanted.shape else 1


def _resized(wanted: InputSpec, port: NodeInput) -> Sequence[int]:
    """The sizes of the data, twice as large behind the channels."""
    data = wanted.shape_of(port.input_at(0)) or ()
    return [*data[:2], *(2 * size for size in data[2:])]


def _ends(wanted: InputSpec, port: NodeInput) -> Sequence[int]:
    """Where the axes end: nothing is cut off."""
    data = wanted.shape_of(port.input_at(0)) or ()
    stored = stored_as(port.input_at(3))
    axes = np.ravel(stored.numpy()) if stored is not None else range(_count(wanted))
    return [data[axis] for axis in axes if -len(data) <= axis < len(data)]


def _parts(wanted: InputSpec, port: NodeInput) -> Sequence[int]:
    """Parts of one size, and what is left over in the last."""
    data, named = wanted.shape_of(port.input_at(0)) or (), port.node.attributes.get("axis")
    axis = named.as_int() if named is not None else 0
    if not -len(data) <= axis < len(data) or not wanted.shape:
        return ()
    part, left = divmod(data[axis], _count(wanted))
    return [*[part] * (_count(wanted) - 1), part + left]


def _flat(wanted: InputSpec, _port: NodeInput) -> Sequence[int]:
    """A shape that every tensor can take: all along the first axis."""
    return [-1, *[1] * (_count(wanted) - 1)]


def _first(wanted: InputSpec, _port: NodeInput) -> Sequence[int]:
    return range(_count(wanted))


def _zeros(wanted: InputSpec, _port: NodeInput) -> Sequence[int]:
    return [0] * _count(wanted)


_LAYOUTS: dict[tuple[str, int], _Layout] = {
    ("Resize", 3): _resized,
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
"""The ports that take a layout, and what fits; nothing where the data's shape is not known."""
