"""Ranges of a model's inputs: declared by the user, or assumed for images, masks and ids."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.bounds import site
from amp_rewrite.bounds.bound import UNKNOWN, Bound, interval
from amp_rewrite.errors import OptionError
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW, stored_as
from amp_rewrite.onnx_facts.operators import MOVERS
from amp_rewrite.policy.options import Ranges

_PIXEL = 255.0
_CHANNELS = (1, 3, 4)
_IMAGE_RANK = 4
_OTHER = re.compile(
    r"mask|past|cache|key|value|state|hidden|latent|noise|\bsample\b|audio|speech|wave|mel|spectr",
    re.IGNORECASE,
)
"""Names of rank-4 inputs that are not images."""

_READERS = frozenset(
    "Conv ConvInteger ConvTranspose DeformConv FusedConv ImageScaler QLinearConv Resize Upsample".split()
)
_CARRIERS = (MOVERS - {"If", "Loop", "Scan"}) | frozenset(
    "BatchNormalization Cast CastLike Clip DequantizeLinear InstanceNormalization Neg QuantizeLinear".split()
)
_SHIFTS = frozenset("Add Div Mul Sub".split())
"""Operators that consume an image as first input; that move, cast or normalise it; and that normalise it by a
stored value.
"""


class Source(enum.Enum):
    """The source of a range: the user, or the assumption of an image, a mask, or ids of a table."""

    DECLARED = "declared"
    IMAGE = "image"
    MASK = "mask"
    IDS = "ids"


@dataclass(frozen=True, slots=True)
class InputRange:
    """The range of an input, and its source."""

    name: str
    low: float
    high: float
    source: Source

    def to_json(self) -> dict[str, Any]:
        """Return the range as plain data; None for an infinite end."""
        low, high = (end if math.isfinite(end) else None for end in (self.low, self.high))
        return {"name": self.name, "low": low, "high": high, "source": self.source.value}


def variable(model: ir.Model) -> frozenset[ir.Value]:
    """Return the stored values that a caller can override: initializers that are inputs, from IR 4 on."""
    return frozenset(value for value in _settable(model) if value.is_initializer())


def _settable(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that a caller gives, or can override."""
    has_constants = model.ir_version < CONSTANT_INPUTS_BELOW
    return [value for value in model.graph.inputs if not (has_constants and value.is_initializer())]


def ranges(model: ir.Model, declared: Ranges) -> tuple[InputRange, ...]:
    """Return the declared and assumed ranges of a model's inputs.

    Raises OptionError for a declared range of a name that is no numeric input.
    """
    inputs = {value.name or "": value for value in _settable(model)}
    for name in declared:
        _check(name, inputs)
    return tuple(_ranges(inputs, declared))


def _check(name: str, inputs: Mapping[str, ir.Value]) -> None:
    if name not in inputs:
        remedy = f"give those of {', '.join(inputs)}" if inputs else "it has none at all"
        raise OptionError(f"`Options.ranges` has '{name}', which is no input of the model", remedy=remedy)
    dtype = inputs[name].dtype
    if dtype is None or not (dtype.is_floating_point() or dtype.is_integer()):
        raise OptionError(
            f"`Options.ranges` has '{name}', which does not hold numbers", remedy="leave it out"
        )


def _ranges(inputs: Mapping[str, ir.Value], declared: Ranges) -> Iterator[InputRange]:
    for name, value in inputs.items():
        if name in declared:
            yield InputRange(name, *declared[name], Source.DECLARED)
        elif (assumption := _assume_range(value)) is not None:
            bound, source = assumption
            yield InputRange(name, bound.low, bound.high, source)


def _assume_range(value: ir.Value) -> tuple[Bound, Source] | None:
    """Return the assumed range: pixels of any scale, normalised or not; 0 or 1 for an integer mask; the
    indices of a table.
    """
    dtype = value.dtype
    if dtype == ir.DataType.FLOAT and is_image(value, value.shape):
        return interval(-_PIXEL, _PIXEL), Source.IMAGE
    if dtype is None or not dtype.is_integer():
        return None
    if "mask" in (value.name or "").lower():
        return interval(0.0, 1.0), Source.MASK
    always = [(node, port) for node, port in value.uses() if node.graph is value.graph]
    sizes = [size for node, port in always if (size := _table(node, port)) is not None]
    return (interval(-float(min(sizes)), min(sizes) - 1.0), Source.IDS) if sizes else None


def is_image(value: ir.Value, shape: Iterable[object] | None) -> bool:
    """Whether an input of this shape is assumed to be images: rank 4, with 1, 3 or 4 channels, first or last,
    and consumed by a convolution or a resize, perhaps after moving, casting or normalising.
    """
    sizes = tuple(shape or ())
    has_channels = len(sizes) == _IMAGE_RANK and (sizes[1] in _CHANNELS or sizes[3] in _CHANNELS)
    return has_channels and not _OTHER.search(value.name or "") and _is_read_as_image(value)


def _is_read_as_image(value: ir.Value) -> bool:
    queue, visited = [value], {value}
    while queue:
        for node, port in queue.pop().uses():
            if port == 0 and node.op_type in _READERS:
                return True
            others = (operand for at, operand in enumerate(node.inputs) if at != port)
            shifts = node.op_type in _SHIFTS and all(stored_as(operand) is not None for operand in others)
            joins = node.op_type in ("Concat", "Where")
            carries = shifts or joins or (port == 0 and node.op_type in _CARRIERS)
            further = [output for output in node.outputs if output not in visited] if carries else []
            visited.update(further)
            queue += further
    return False


def _table(node: ir.Node, port: int) -> int | None:
    """Return the number of entries of the stored table that a Gather reads by these indices."""
    if node.op_type != "Gather" or node.domain or port != 1:
        return None
    tensor = stored_as(node.inputs[0])
    shape = tensor.shape.numpy() if tensor is not None else ()
    at = node.attributes.get_int("axis", 0)
    return int(shape[at]) if -len(shape) <= at < len(shape) else None


def bounds(model: ir.Model, input_ranges: tuple[InputRange, ...]) -> dict[ir.Value, Bound]:
    """Return the bounds of a model's inputs: their ranges, else those of their types."""
    intervals = {each.name: interval(each.low, each.high) for each in input_ranges}
    return {value: intervals.get(value.name or "", _of_type(value)) for value in _settable(model)}


def _of_type(value: ir.Value) -> Bound:
    return site.of_type(value.dtype) if isinstance(value.type, ir.TensorType) else UNKNOWN
