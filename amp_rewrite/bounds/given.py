"""Ranges of a model's inputs: declared by the user, or assumed for images, masks and ids."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.errors import OptionError
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW, stored_as
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.traversal import reach
from amp_rewrite.operators.record import Move, Operator, Role, Trait
from amp_rewrite.policy.options import Ranges

_PIXEL = 255.0
_CHANNELS = (1, 3, 4)
_IMAGE_RANK = 4
_OTHER = re.compile(
    r"mask|past|cache|key|value|state|hidden|latent|noise|\bsample\b|audio|speech|wave|mel|spectr",
    re.IGNORECASE,
)
"""Names of rank-4 inputs that are not images."""


class Source(enum.Enum):
    """The source of a range: the user, or the assumption of an image or a mask."""

    DECLARED = "declared"
    IMAGE = "image"
    MASK = "mask"


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


def settable(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that a caller gives, or can override: initializers too, from IR 4 on."""
    has_constants = model.ir_version < CONSTANT_INPUTS_BELOW
    return [value for value in model.graph.inputs if not (has_constants and value.is_initializer())]


def ranges(model: ir.Model, declared: Ranges) -> tuple[InputRange, ...]:
    """Return the declared and assumed ranges of a model's inputs.

    Raises OptionError for a declared range of a name that is no numeric input.
    """
    inputs = {value.name or "": value for value in settable(model)}
    for name in declared:
        _check(name, inputs)
    found = (
        InputRange(name, *declared[name], Source.DECLARED) if name in declared else _assume_range(name, value)
        for name, value in inputs.items()
    )
    return tuple(each for each in found if each is not None)


def _check(name: str, inputs: Mapping[str, ir.Value]) -> None:
    if name not in inputs:
        remedy = f"give those of {', '.join(inputs)}" if inputs else "it has none at all"
        raise OptionError(f"`Options.ranges` has '{name}', which is no input of the model", remedy=remedy)
    dtype = inputs[name].dtype
    if dtype is None or not (dtype.is_floating_point() or dtype.is_integer()):
        problem = f"`Options.ranges` has '{name}', which does not hold numbers"
        raise OptionError(problem, remedy="leave it out")


def _assume_range(name: str, value: ir.Value) -> InputRange | None:
    """Return the assumed range: pixels of any scale, normalised or not; 0 or 1 for an integer mask."""
    if value.dtype == ir.DataType.FLOAT and is_image(value, value.shape):
        return InputRange(name, -_PIXEL, _PIXEL, Source.IMAGE)
    is_mask = value.dtype is not None and value.dtype.is_integer() and "mask" in name.lower()
    return InputRange(name, 0.0, 1.0, Source.MASK) if is_mask else None


def is_image(value: ir.Value, shape: Iterable[object] | None) -> bool:
    """Whether an input of this shape is assumed to be images: rank 4, with 1, 3 or 4 channels, first or last,
    and consumed by a convolution or a resize, perhaps after moving, casting or normalising.
    """
    sizes = tuple(shape or ())
    has_channels = len(sizes) == _IMAGE_RANK and (sizes[1] in _CHANNELS or sizes[3] in _CHANNELS)
    return has_channels and not _OTHER.search(value.name or "") and _is_read_as_image(value)


def _is_read_as_image(value: ir.Value) -> bool:
    def following(value: ir.Value) -> Iterator[ir.Value]:
        for node, port in value.uses():
            others = (operand for at, operand in enumerate(node.inputs) if at != port)
            record = record_of(node)
            shifts = record.traits & (Trait.ADDS | Trait.SCALES) and all(
                stored_as(operand) is not None for operand in others
            )
            joins = record.move is Move.JOINS
            if shifts or joins or (port == 0 and (node.op_type == "Neg" or _carries(record))):
                yield from node.outputs

    uses = (use for each in reach([value], following) for use in each.uses())
    return any(record_of(node).roles.get(port) is Role.IMAGE for node, port in uses)


def _carries(record: Operator) -> bool:
    """Return whether an operator moves, converts or normalises its first input."""
    is_norm = record.bias is not None and record.channel is None
    converts = record.traits & Trait.CONVERTS and record.traits & Trait.LIKE_FIRST
    return is_norm or bool(converts) or record.move not in (None, Move.CONTROLS)
