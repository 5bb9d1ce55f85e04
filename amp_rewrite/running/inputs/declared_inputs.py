"""The inputs that a model or a session declares, and values converted to their types."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.arguments import describe
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
        """True if its type is optional, so that None is a valid value."""
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


def inputs_of(model: ir.Model, model_path: str = "") -> tuple[Input, ...]:
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


# Conversion of values to the type and shape that a model declares for an input.

Array = NDArray[Any]


def coerce(declared: Input, value: Any, where: str | Path) -> Any:
    """Return the value in the input's type: an array, or a list of arrays for a sequence.

    The element type is converted if no number changes, and from float64 to float32. A sequence may be given
    as one array, with its tensors along the first axis. Raises FeedError if the value does not fit.
    """
    if value is None and not declared.is_optional:
        raise declared.error(f"is {declared.type_text}, and no value was given", where=where, remedy=_SAVE)
    if value is None or declared.structure is Structure.OTHER:
        return value
    if declared.structure is Structure.TENSOR:
        return _tensor(declared, np.asarray(value), where)
    if np.ndim(value) == 0 and not isinstance(value, list):
        raise _mismatch(declared, (), np.asarray(value).dtype, where)
    return [_tensor(declared, np.asarray(item), where) for item in value]


_SAVE = "save it in that type and shape"


def refuse_unknown(names: Iterable[str], inputs: Mapping[str, Input], where: str | Path) -> None:
    """Raise FeedError for a name that is not an input."""
    for name in names:
        if name not in inputs:
            choices = ", ".join(inputs) or "no inputs"
            raise FeedError(f"the model has no input '{name}'", where=where, remedy=f"it has {choices}")


def refuse_wrong_names(names: Collection[str], inputs: Mapping[str, Input], where: str | Path) -> None:
    """Raise FeedError for a name that is not an input, and for a missing input without a default."""
    refuse_unknown(names, inputs, where)
    for name, declared in inputs.items():
        if name not in names and not declared.has_default:
            raise declared.error("is missing", where=where, remedy=f"add it, as {declared.type_text}")


def _tensor(declared: Input, array: Array, where: str | Path) -> Array:
    converted = _convert(array, declared.dtype) if _fits(declared, array.shape) else None
    if converted is None:
        raise _mismatch(declared, array.shape, array.dtype, where)
    return converted


def _mismatch(declared: Input, shape: tuple[int, ...], dtype: np.dtype[Any], where: str | Path) -> FeedError:
    actual = f"{dtype}[{','.join(map(str, shape))}]"
    return declared.error(f"is {declared.type_text}, but {actual} was given", where=where, remedy=_SAVE)


def _fits(declared: Input, shape: tuple[int, ...]) -> bool:
    if declared.dims is None:
        return True
    sizes = zip(shape, declared.dims, strict=False)
    return len(shape) == len(declared.dims) and all(
        not isinstance(dim, int) or size == dim for size, dim in sizes
    )


def _convert(array: Array, dtype: ir.DataType | None) -> Array | None:
    """Return the array in that element type; None if numbers would change."""
    target = dtype.numpy() if dtype is not None else array.dtype
    if dtype == ir.DataType.STRING:
        return array if array.dtype.kind in "UOST" else None
    if array.dtype == target:
        return array
    if array.dtype.kind == "V" and array.dtype.itemsize == target.itemsize:
        return array.view(target)  # an .npz does not store the names of extension types
    if _category(array.dtype) != _category(target):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(target)
    is_usual = (array.dtype, target) == (np.float64, np.float32)
    is_float = _category(target) == "float"
    same = is_usual or np.array_equal(cast.astype(array.dtype), array, equal_nan=is_float)
    return cast if same else None


def _category(dtype: np.dtype[Any]) -> str:
    """Return `float` or `integer`, or NumPy's kind code for other types."""
    try:
        data_type = ir.DataType.from_numpy(dtype)
    except TypeError:
        return dtype.kind
    if data_type.is_floating_point():
        return "float"
    return "integer" if data_type.is_integer() else dtype.kind


# Diagnosis of a sample that does not fit a session, after a run has failed on it.

_TENSOR = re.compile(r"^tensor\((\w+)\)$")
"""The notation of onnxruntime for the type of a tensor."""


def refuse(session: Any, feeds: Mapping[str, Any], where: str) -> None:
    """Raise FeedError for an input that is unknown, missing, no array, or of another type or shape."""
    entries = ((session.get_inputs(), False), (session.get_overridable_initializers(), True))
    inputs = {
        entry.name: _input_of_session(entry, has_default=has_default)
        for ports, has_default in entries
        for entry in ports
    }
    refuse_wrong_names(feeds, inputs, where)
    for name, value in feeds.items():
        declared = inputs[name]
        if declared.structure is not Structure.TENSOR:
            continue
        if not isinstance(value, (np.ndarray, np.generic)):
            problem = f"is {declared.type_text}, but {describe(value)} was given, which is no NumPy array"
            remedy = "give a numpy.ndarray (tensor.numpy() of a tensor)"
            raise declared.error(problem, where=where, remedy=remedy)
        remedy = "give it in that type and shape"
        try:
            if coerce(declared, value, where).dtype != value.dtype:  # which a file may have, and a call not
                raise _mismatch(declared, value.shape, value.dtype, where)
        except FeedError as error:
            raise FeedError(error.problem, where=error.where, remedy=remedy) from error


def _input_of_session(entry: Any, *, has_default: bool) -> Input:
    tensor = _TENSOR.match(entry.type)
    name = "FLOAT" if tensor is None else tensor[1].upper()
    return Input(
        value=ir.Value(name=entry.name),
        name=entry.name,
        structure=Structure.OTHER if tensor is None else Structure.TENSOR,
        dtype=ir.DataType[name] if name in ir.DataType.__members__ else None,
        dims=tuple(entry.shape) if entry.shape else None,
        has_default=has_default,
    )
