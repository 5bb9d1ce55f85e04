"""Synthetic integer inputs: ids within their tables, positions, masks, lengths and shape operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.input_spec import Array, InputSpec, Rule, node_inputs
from amp_rewrite.running.inputs.sizes import NodeInput

# Synthetic operands that determine shapes: shapes, axes, ends of slices, parts of splits.

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


TRIP_COUNT = 3
"""The number of iterations of a loop whose trip count is an input."""


def _position(spec: InputSpec) -> Array | None:
    """Ascending positions that follow those of the past, modulo the size of their table."""
    if not spec.words & {"position", "positions", "pos"}:
        return None
    past = max((shape[2] for shape in spec.pasts), default=0)
    last = spec.shape[-1] if spec.shape else 1
    ascending = np.arange(past, past + last) % (_bound(spec) or past + last or 1)
    return np.broadcast_to(ascending if spec.shape else ascending[0], spec.shape)


def _zeros_by_name(spec: InputSpec) -> Array | None:
    is_zero = spec.words >= {"token", "type"} or "segment" in spec.words or spec.is_past
    return spec.full(0) if is_zero else None


def _mask_by_name(spec: InputSpec) -> Array | None:
    return spec.full(1) if "mask" in spec.words else None


def _index(spec: InputSpec) -> Array | None:
    bound = _bound(spec)
    return None if bound is None else spec.random.integers(0, max(bound, 1), spec.shape)


def _bound(spec: InputSpec) -> int | None:
    """The number of entries of the smallest table that the input indexes; None if it indexes none."""
    bounds = (bound(spec, use) for use in spec.uses if (bound := _TABLES.get(use.key)))
    return min((size for size in bounds if size is not None), default=None)


_Bound = Callable[[InputSpec, NodeInput], int | None]


def _axis_size(data: int) -> _Bound:
    """The size of the node's attribute `axis`, of the shape of its input `data`."""

    def bound(spec: InputSpec, use: NodeInput) -> int | None:
        shape = spec.shape_of(use.input_at(data))
        axis = use.attribute("axis", use.attribute("gather_axis"))
        return shape[axis] if shape and -len(shape) <= axis < len(shape) else None

    return bound


def _smallest_axis(spec: InputSpec, use: NodeInput) -> int | None:
    """The smallest size of the data: valid for an index tuple in every axis."""
    return min(spec.shape_of(use.input_at(0)) or (), default=None)


def _depth(_spec: InputSpec, use: NodeInput) -> int | None:
    stored = stored_as(use.input_at(1))
    return int(np.ravel(stored.numpy())[0]) if stored is not None else None


_TABLES: dict[tuple[str, int], _Bound] = {
    ("Gather", 1): _axis_size(0),
    ("GatherElements", 1): _axis_size(0),
    ("ScatterElements", 1): _axis_size(0),
    ("GatherND", 1): _smallest_axis,
    ("ScatterND", 1): _smallest_axis,
    ("OneHot", 0): _depth,
    ("com.microsoft:GatherBlockQuantized", 1): _axis_size(0),
    ("com.microsoft:EmbedLayerNormalization", 0): _axis_size(2),
    ("com.microsoft:EmbedLayerNormalization", 1): _axis_size(4),
    ("com.microsoft:EmbedLayerNormalization", 8): _axis_size(3),
}
"""Node inputs that are indices, and their bounds."""


def _length(spec: InputSpec) -> Array | None:
    """The full length of the data."""
    for use in spec.uses:
        axis = _LENGTHS.get(use.key)
        shape = spec.shape_of(use.input_at(0)) if axis is not None else None
        if axis is not None and shape:
            return spec.full(shape[axis(use)])
    shapes = (s for v, s in spec.all_shapes.items() if v is not spec.input.value and len(s) > 1)
    other = next(shapes, None)
    is_length = spec.words & {"len", "lens", "length", "lengths"}
    return spec.full(other[1]) if is_length and other else None


_LENGTHS: dict[tuple[str, int], Callable[[NodeInput], int]] = {
    **{(operator, 4): lambda _: 0 for operator in ("LSTM", "GRU", "RNN")},
    ("ReverseSequence", 1): lambda use: use.attribute("time_axis"),
}
"""Node inputs that are lengths, and the axis of the data that they are for."""


def _compared(spec: InputSpec) -> Array | None:
    """The constant that the input is compared with, such as a sampling rate; 0 and 1 are truth values."""
    others = (use.input_at(1 - use.index) for use in spec.uses if use.operator == "Equal")
    stored = (stored_as(value) for value in others)
    scalars = (int(np.ravel(t.numpy())[0]) for t in stored if t is not None and t.size == 1)
    number = next((scalar for scalar in scalars if scalar not in (0, 1)), None)
    return None if number is None else spec.full(number)


def _mask_by_use(spec: InputSpec) -> Array | None:
    return spec.full(1) if spec.reaches(_MASKED) and len(spec.shape) > 1 else None


_MASKED = node_inputs("Sub", 1) | node_inputs("Equal", 0, 1) | node_inputs("Where Not", 0)


def _trip_count(spec: InputSpec) -> Array | None:
    """A trip count is an input of Loop, or of the comparison with a counter in the loop's condition."""
    return spec.full(TRIP_COUNT) if spec.is_single and spec.reaches(_COUNTS) else None


_COUNTS = node_inputs("Loop", 0) | node_inputs("Less LessOrEqual Greater GreaterOrEqual", 0, 1)


def _divisor(spec: InputSpec) -> Array | None:
    return spec.full(1) if spec.reaches(node_inputs("Div Mod", 1)) else None


def _bytes(spec: InputSpec) -> Array | None:
    if spec.dtype not in (ir.DataType.UINT8, ir.DataType.INT8) or len(spec.shape) <= 1:
        return None
    limits = np.iinfo(spec.dtype.numpy())
    return spec.random.integers(limits.min, limits.max + 1, spec.shape)


def _small(spec: InputSpec) -> Array:
    return spec.random.integers(0, 2, spec.shape) if len(spec.shape) > 1 else spec.full(1)


RULES: tuple[Rule, ...] = (
    _position,
    _zeros_by_name,
    _mask_by_name,
    _index,
    _length,
    _compared,
    _mask_by_use,
    _trip_count,
    by_use,
    by_name,
    _divisor,
    _bytes,
    _small,
)
"""The rules for integer inputs; the last one always applies."""
