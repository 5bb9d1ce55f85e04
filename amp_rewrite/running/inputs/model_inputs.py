"""What a model asks its caller for."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from amp_rewrite.errors import FeedError
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW
from amp_rewrite.onnx_types.element_types import element_type_name

_NO_NAMES = frozenset(("", "?", "None", "none", "-1", "unk"))
"""What exporters write where a dimension has no name: two of these need not be of one size."""

Dim = int | str | None
"""A fixed size, the symbol of one that is not, or None where the model says nothing."""


class Holds(enum.Enum):
    """What an input is, or is when it is there: a tensor, a list of tensors, or neither."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a model.

    `dims` are those of the tensor, or of each tensor of a sequence; None where not even the rank is
    known. A `spare` input has a default in the model: it may be left out. `owner` is the path of the
    model, empty for one that has none.
    """

    value: ir.Value
    name: str
    holds: Holds
    dtype: ir.DataType | None
    dims: tuple[Dim, ...] | None
    spare: bool
    owner: str = ""

    @property
    def may_miss(self) -> bool:
        """Whether nothing at all is a value of it."""
        return isinstance(self.value.type, ir.OptionalType)

    @property
    def typed(self) -> str:
        """The type as a reader of models writes it: `float32[batch,3]`."""
        dtype = element_type_name(self.dtype) if self.dtype is not None else "unknown"
        dims = () if self.dims is None else self.dims
        size = "" if self.dims is None else f"[{','.join('?' if d is None else str(d) for d in dims)}]"
        whole = f"{dtype}{size}" if self.holds is Holds.TENSOR else f"{self.holds.value}({dtype}{size})"
        return f"optional({whole})" if self.may_miss else whole

    def error(self, problem: str, *, where: str | Path = "", remedy: str = "") -> FeedError:
        """The error for this input; `problem` finishes the sentence "input 'x' ..."."""
        owned = f" of {self.owner}" if self.owner else ""
        return FeedError(f"input '{self.name}'{owned} {problem}", where=where, remedy=remedy)


def of(model: ir.Model, owner: str = "") -> tuple[Input, ...]:
    """The inputs in the order of the model, which has that path.

    Before IR version 4 weights are listed as inputs, and are none; from then on they are spare.
    """
    weights_are_inputs = model.ir_version >= CONSTANT_INPUTS_BELOW
    values = (v for v in model.graph.inputs if weights_are_inputs or not v.is_initializer())
    return tuple(_input(value, owner) for value in values)


def _input(value: ir.Value, owner: str) -> Input:
    return Input(
        value=value,
        name=value.name or "",
        holds=_holds(value.type),
        dtype=value.dtype,
        dims=None if value.shape is None else tuple(_dims(value.shape)),
        spare=value.is_initializer(),
        owner=owner,
    )


def _holds(kind: ir.TypeProtocol | None) -> Holds:
    if isinstance(kind, ir.TensorType):
        return Holds.TENSOR
    if isinstance(kind, ir.SequenceType) and isinstance(kind.elem_type, ir.TensorType):
        return Holds.SEQUENCE
    if isinstance(kind, ir.OptionalType):
        return _holds(kind.elem_type)
    return Holds.OTHER


def _dims(shape: Iterable[int | ir.SymbolicDim]) -> list[Dim]:
    return [_dim(dim if isinstance(dim, int) else dim.value) for dim in shape]


def _dim(said: Dim) -> Dim:
    if isinstance(said, int):
        return said if said >= 0 else None
    return None if said is None or said in _NO_NAMES else said
