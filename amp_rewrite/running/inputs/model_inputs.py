"""The inputs that a model declares."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.errors import FeedError
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW
from amp_rewrite.onnx_types.element_types import element_type_name

_NO_NAMES = frozenset(("", "?", "None", "none", "-1", "unk"))
"""Placeholders that exporters write for unnamed dimensions: two of these need not have the same size."""

Dim = int | str | None
"""A fixed size, the symbol of an open one, or None if the model declares neither."""


class Structure(enum.Enum):
    """The structure of an input, or of an optional input's element."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a model.

    `dims` are those of the tensor, or of each tensor of a sequence; None if the rank is unknown. An input
    that `has_default` (an initializer) may be omitted. `model_path` is empty for a model that was not read
    from a file.
    """

    value: ir.Value
    name: str
    structure: Structure
    dtype: ir.DataType | None
    dims: tuple[Dim, ...] | None
    has_default: bool
    model_path: str = ""

    @property
    def is_optional(self) -> bool:
        """Whether its type is optional, so that None is a valid value."""
        return isinstance(self.value.type, ir.OptionalType)

    @property
    def type_text(self) -> str:
        """The type in a readable form: `float32[batch,3]`."""
        dtype = element_type_name(self.dtype) if self.dtype is not None else "unknown"
        dims = "" if self.dims is None else ",".join("?" if d is None else str(d) for d in self.dims)
        text = dtype if self.dims is None else f"{dtype}[{dims}]"
        if self.structure is not Structure.TENSOR:
            text = f"{self.structure.value}({text})"
        return f"optional({text})" if self.is_optional else text

    def error(self, problem: str, *, where: str | Path = "", remedy: str = "") -> FeedError:
        """The error for this input; `problem` completes the sentence "input 'x' ..."."""
        model = f" of {self.model_path}" if self.model_path else ""
        return FeedError(f"input '{self.name}'{model} {problem}", where=where, remedy=remedy)


def of(model: ir.Model, model_path: str = "") -> tuple[Input, ...]:
    """The inputs of a model in order.

    Below IR version 4 initializers are listed as inputs, but cannot be set; from then on they are defaults.
    """
    can_be_set = model.ir_version >= CONSTANT_INPUTS_BELOW
    values = (v for v in model.graph.inputs if can_be_set or not v.is_initializer())
    return tuple(
        Input(
            value=value,
            name=value.name or "",
            structure=_structure(value.type),
            dtype=value.dtype,
            dims=None if value.shape is None else tuple(map(_dim, value.shape)),
            has_default=value.is_initializer(),
            model_path=model_path,
        )
        for value in values
    )


def _structure(declared: ir.TypeProtocol | None) -> Structure:
    if isinstance(declared, ir.TensorType):
        return Structure.TENSOR
    if isinstance(declared, ir.SequenceType) and isinstance(declared.elem_type, ir.TensorType):
        return Structure.SEQUENCE
    if isinstance(declared, ir.OptionalType):
        return _structure(declared.elem_type)
    return Structure.OTHER


def _dim(dim: int | ir.SymbolicDim) -> Dim:
    declared = dim if isinstance(dim, int) else dim.value
    if isinstance(declared, int):
        return declared if declared >= 0 else None
    return None if declared in _NO_NAMES else declared
