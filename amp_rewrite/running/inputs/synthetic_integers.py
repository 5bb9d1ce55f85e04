"""Integers made up: ids within their tables, positions, masks, lengths, and what lays out tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs import synthetic_shape_inputs
from amp_rewrite.running.inputs.consumers import NodeInput
from amp_rewrite.running.inputs.input_spec import Array, InputSpec, Rule, node_inputs

TRIPS = 3
"""How often a loop runs whose count is an input."""


def _position(wanted: InputSpec) -> Array | None:
    """Positions ascend behind those of the past, and start again where their table ends."""
    if not wanted.words & {"position", "positions", "pos"}:
        return None
    past = max((shape[2] for shape in wanted.pasts), default=0)
    last = wanted.shape[-1] if wanted.shape else 1
    ascending = np.arange(past, past + last) % (_bound(wanted) or past + last or 1)
    return np.broadcast_to(ascending if wanted.shape else ascending[0], wanted.shape)


def _zeros_by_name(wanted: InputSpec) -> Array | None:
    kinds = (wanted.words >= {"token", "type"}, "segment" in wanted.words, wanted.is_past)
    return wanted.full(0) if any(kinds) else None


def _mask_by_name(wanted: InputSpec) -> Array | None:
    return wanted.full(1) if "mask" in wanted.words else None


def _index(wanted: InputSpec) -> Array | None:
    bound = _bound(wanted)
    return None if bound is None else wanted.random.integers(0, max(bound, 1), wanted.shape)


def _bound(wanted: InputSpec) -> int | None:
    """How many entries the smallest table has that the input is an index of; None when it is none."""
    found = (bound(wanted, port) for port in wanted.uses if (bound := _TABLES.get(port.key)))
    return min((size for size in found if size is not None), default=None)


_Bound = Callable[[InputSpec, NodeInput], int | None]


def _rows(data: int) -> _Bound:
    """The size of the axis that the node's attribute names, of what it reads at `data`."""

    def bound(wanted: InputSpec, port: NodeInput) -> int | None:
        shape = wanted.shape_of(port.input_at(data))
        named = port.node.attributes.get("axis", port.node.attributes.get("gather_axis"))
        axis = named.as_int() if named is not None else 0
        return shape[axis] if shape and -len(shape) <= axis < len(shape) else None

    return bound


def _smallest(wanted: InputSpec, port: NodeInput) -> int | None:
    """The smallest axis of the data: an index into several of them is in each."""
    shape = wanted.shape_of(port.input_at(0))
    return min(shape) if shape else None


def _depth(_wanted: InputSpec, port: NodeInput) -> int | None:
    stored = stored_as(port.input_at(1))
    return int(np.ravel(stored.numpy())[0]) if stored is not None else None


_TABLES: dict[tuple[str, int], _Bound] = {
    ("Gather", 1): _rows(0),
    ("GatherElements", 1): _rows(0),
    ("ScatterElements", 1): _rows(0),
    ("GatherND", 1): _smallest,
    ("ScatterND", 1): _smallest,
    ("OneHot", 0): _depth,
    ("com.microsoft:GatherBlockQuantized", 1): _rows(0),
    ("com.microsoft:EmbedLayerNormalization", 0): _rows(2),
    ("com.microsoft:EmbedLayerNormalization", 1): _rows(4),
    ("com.microsoft:EmbedLayerNormalization", 8): _rows(3),
}
"""The ports that take indices, and how many there may be."""


def _length(wanted: InputSpec) -> Array | None:
    """Lengths are those of the data: nothing is cut off."""
    for port in wanted.uses:
        axis = _LENGTHS.get(port.key)
        shape = wanted.shape_of(port.input_at(0)) if axis is not None else None
        if axis is not None and shape:
            return wanted.full(shape[axis(port)])
    lengths = wanted.words & {"len", "lens", "length", "lengths"}
    other = next(
        (s for v, s in wanted.all_shapes.items() if v is not wanted.input.value and len(s) > 1), None
    )
    return wanted.full(other[1]) if lengths and other else None


def _time_axis(port: NodeInput) -> int:
    said = port.node.attributes.get("time_axis")
    return said.as_int() if said is not None else 0


_LENGTHS: dict[tuple[str, int], Callable[[NodeInput], int]] = {
    **{(operator, 4): lambda _: 0 for operator in ("LSTM", "GRU", "RNN")},
    ("ReverseSequence", 1): _time_axis,
}


def _compared(wanted: InputSpec) -> Array | None:
    """What is compared with a stored number, such as a sampling rate, is that; 0 and 1 are truths."""
    others = (port.input_at(1 - port.index) for port in wanted.uses if port.operator == "Equal")
    stored = (stored_as(value) for value in others)
    scalars = (int(np.ravel(t.numpy())[0]) for t in stored if t is not None and t.size == 1)
    number = next((scalar for scalar in scalars if scalar not in (0, 1)), None)
    return None if number is None else wanted.full(number)


def _mask_by_use(wanted: InputSpec) -> Array | None:
    return wanted.full(1) if wanted.reaches(_MASKED) and len(wanted.shape) > 1 else None


_MASKED = node_inputs("Sub", 1) | node_inputs("Equal", 0, 1) | node_inputs("Where Not", 0)


def _trips(wanted: InputSpec) -> Array | None:
    """A count of iterations goes to a Loop, or is what its condition compares a counter with."""
    single = all(size == 1 for size in wanted.shape)
    return wanted.full(TRIPS) if single and wanted.reaches(_COUNTS) else None


_COUNTS = node_inputs("Loop", 0) | node_inputs("Less LessOrEqual Greater GreaterOrEqual", 0, 1)


def _divisor(wanted: InputSpec) -> Array | None:
    return wanted.full(1) if wanted.reaches(node_inputs("Div Mod", 1)) else None


def _bytes(wanted: InputSpec) -> Array | None:
    wide = wanted.input.dtype in (ir.DataType.UINT8, ir.DataType.INT8) and len(wanted.shape) > 1
    limits = np.iinfo(wanted.input.dtype.numpy()) if wanted.input.dtype and wide else None
    return wanted.random.integers(limits.min, limits.max + 1, wanted.shape) if limits else None


def _small(wanted: InputSpec) -> Array:
    return wanted.random.integers(0, 2, wanted.shape) if len(wanted.shape) > 1 else wanted.full(1)


RULES: tuple[Rule, ...] = (
    _position,
    _zeros_by_name,
    _mask_by_name,
    _index,
    _length,
    _compared,
    _mask_by_use,
    _trips,
    synthetic_shape_inputs.by_port,
    synthetic_shape_inputs.by_name,
    _divisor,
    _bytes,
    _small,
)
"""What an integer input may be; the last rule fits all."""
