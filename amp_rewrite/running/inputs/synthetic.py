"""Inputs synthesised from the model alone: ids within their tables, masks of ones, positive radicands.

Tables of rules decide by the type and name of an input and by the operators that read it; the first rule that
applies gives the values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.errors import FeedError
from amp_rewrite.model import inlining
from amp_rewrite.model.constants import stored_as
from amp_rewrite.policy.open_sizes import refuse_wrong_sizes
from amp_rewrite.policy.ranges import Ranges
from amp_rewrite.running.inputs import model_inputs, said_ranges, synthetic_floats
from amp_rewrite.running.inputs.image_range import ImageRange
from amp_rewrite.running.inputs.input_spec import Array, InputSpec, Rule, node_inputs
from amp_rewrite.running.inputs.model_inputs import Input, Structure
from amp_rewrite.running.inputs.sizes import RULES, Consumers, Key, NodeInput, OpenDim, Shape, size_of

# Synthetic integer inputs: ids within their tables, positions, masks, lengths and shape operands.

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


INTEGER_RULES: tuple[Rule, ...] = (
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


SEQUENCE_LENGTH = 2
"""The number of tensors in a synthetic sequence."""
BRANCHES = 2


def synthesise(
    model: ir.Model,
    dims: Mapping[str, int],
    seed: int,
    samples: int,
    model_path: str = "",
    images: ImageRange = ImageRange.UNIT,
    ranges: Ranges | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Samples for a model, one after the other; the same seed gives the same samples.

    Each input has its own random number generator, so that adding an input does not change the others.
    Where an input chooses a branch there are two samples at least, and they take turns: both branches run.
    `images` is the range of images for which the graph does not say one, `ranges` are those that the user
    declared of inputs. Inlines the functions of `model`.
    Raises FeedError if an input cannot be synthesised, or if `dims` has a name that is not an open dimension.
    """
    specs = [replace(spec, unsaid_images=images) for spec in _specs(model, dims, ranges or {}, model_path)]
    branches = BRANCHES if any(spec.chooses for spec in specs) else 1
    count = max(samples, branches)
    return ({spec.input.name: _values(spec, seed, index) for spec in specs} for index in range(count))


def image_ranges(model: ir.Model, dims: Mapping[str, int], ranges: Ranges) -> frozenset[ImageRange | None]:
    """The ranges that the graph says of its images, with None for one of which it says nothing; empty without
    images, but for those with a declared range. Raises what `synthesise` raises.
    """
    return frozenset(
        said_ranges.said_range(spec)
        for spec in _specs(model, dims, ranges)
        if spec.dtype.is_floating_point() and synthetic_floats.is_image(spec)
    )


def _specs(model: ir.Model, dims: Mapping[str, int], ranges: Ranges, model_path: str = "") -> list[InputSpec]:
    inlining.inline(model)
    inputs = _required(model, model_path)
    for declared in inputs:
        _check_type(declared)
    consumers = Consumers(model.graph)
    shapes = _shapes(inputs, dims, consumers)
    for declared in inputs:
        _check_size(declared, shapes[declared.name])
    by_value = {declared.value: shapes[declared.name] for declared in inputs}
    found = (InputSpec(i, shapes[i.name], consumers.of(i.value), by_value, consumers) for i in inputs)
    return [replace(spec, declared=ranges.get(spec.input.name)) for spec in found]


def open_sizes(model: ir.Model, dims: Mapping[str, int]) -> dict[str, int]:
    """The size that `synthesise` chooses for each open dimension, by its name in `dims`."""
    inlining.inline(model)
    inputs, consumers = _required(model), Consumers(model.graph)
    found = _shapes(inputs, dims, consumers)
    return {d.symbol or d.label: found[d.input.name][d.axis] for d in _open_dims(inputs, consumers)}


def _shapes(inputs: Sequence[Input], dims: Mapping[str, int], consumers: Consumers) -> dict[str, Shape]:
    """The shape of every input of known rank, by name; a symbol has the same size everywhere.

    `dims` gives sizes by symbol or as `input:axis`. Raises FeedError if it has a name that is not open, or
    two sizes for one axis.
    """
    open_dims = list(_open_dims(inputs, consumers))
    refuse_wrong_sizes(dims, {d.label: d.symbol for d in open_dims}, FeedError)
    labelled = {(d.input.name, d.axis): dims[d.label] for d in open_dims if d.label in dims}
    found: dict[Key, int] = {d.key: dims[d.label] for d in open_dims if d.label in dims}
    found |= {symbol: dims[symbol] for d in open_dims if (symbol := d.symbol) and symbol in dims}
    for rule in RULES:
        for dim in open_dims:
            size = None if dim.key in found else rule(dim, found)
            if size is not None:
                found[dim.key] = size
    return {
        i.name: tuple(labelled.get((i.name, axis), size_of(i, axis, found, 1)) for axis in range(len(i.dims)))
        for i in inputs
        if i.dims is not None
    }


def _open_dims(inputs: Sequence[Input], consumers: Consumers) -> Iterator[OpenDim]:
    for declared in inputs:
        for axis, dim in enumerate(declared.dims or ()):
            if not isinstance(dim, int):
                yield OpenDim(declared, axis, dim, inputs, consumers)


def _required(model: ir.Model, model_path: str = "") -> list[Input]:
    return [declared for declared in model_inputs.of(model, model_path) if not declared.has_default]


def _check_type(declared: Input) -> None:
    if declared.structure is Structure.OTHER or declared.dtype is None:
        raise declared.error("is not a tensor, and cannot be synthesised", remedy=_GIVE)
    if declared.dims is None:
        raise declared.error("has no shape in the model, not even a rank", remedy=_GIVE)
    if len(declared.dims) > _MAX_RANK:
        raise declared.error(
            f"has {len(declared.dims):,} dimensions, and NumPy has at most {_MAX_RANK}",
            remedy="export the model with fewer",
        )
    if not any(applies(declared.dtype) for applies, _ in _RULES):
        raise declared.error(f"is {declared.dtype.name.lower()}, and cannot be synthesised", remedy=_GIVE)


def _check_size(declared: Input, shape: tuple[int, ...]) -> None:
    if math.prod(shape) > _MAX_ELEMENTS:
        size = " x ".join(map(str, shape))
        raise declared.error(f"would have {size} elements", remedy="give smaller sizes with `Data.dims`")


_MAX_ELEMENTS = 1 << 40
"""More than any machine has memory for: NumPy's errors beyond that are of several kinds."""
_MAX_RANK = 64
_GIVE = "give it with `Data.paths`"


def _values(spec: InputSpec, seed: int, sample: int) -> Any:
    name = zlib.crc32(spec.input.name.encode())
    spec = replace(spec, random=np.random.default_rng([seed, sample, name]), sample=sample)
    if spec.input.structure is Structure.SEQUENCE:
        return [_tensor(spec) for _ in range(SEQUENCE_LENGTH)]
    return _tensor(spec)


def _tensor(spec: InputSpec) -> Array:
    rules = next(rules for applies, rules in _RULES if applies(spec.dtype))
    values = next(values for rule in rules if (values := rule(spec)) is not None)
    return np.asarray(values).astype(spec.dtype.numpy())


def _truth(spec: InputSpec) -> Array:
    return spec.full(not spec.chooses or spec.sample % BRANCHES == 0)


_RULES: tuple[tuple[Callable[[ir.DataType], bool], tuple[Rule, ...]], ...] = (
    (lambda dtype: dtype == ir.DataType.BOOL, (_truth,)),
    (lambda dtype: dtype == ir.DataType.STRING, (lambda spec: np.full(spec.shape, "hello world"),)),
    (lambda dtype: dtype.is_integer(), INTEGER_RULES),
    (lambda dtype: dtype.is_floating_point(), synthetic_floats.RULES),
)
"""The rules for each category of element types."""
