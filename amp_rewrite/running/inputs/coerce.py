"""Conversion of given values to the type and shape that a model declares for an input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import FeedError
from amp_rewrite.running.inputs.model_inputs import Input, Structure

Array = NDArray[Any]


def coerce(declared: Input, value: Any, where: str | Path) -> Any:
    """The value in the input's type: an array, or a list of arrays for a sequence.

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
    """FeedError for a name that is not an input."""
    for name in names:
        if name not in inputs:
            known = ", ".join(inputs) or "no inputs"
            raise FeedError(f"the model has no input '{name}'", where=where, remedy=f"it has {known}")


def check_declared(declared: Input, shape: tuple[int, ...], dtype: np.dtype[Any], where: str | Path) -> None:
    """Raises the FeedError of `coerce` if no array of this shape and type is a value of the input."""
    if declared.structure is Structure.OTHER:
        return
    is_sequence = declared.structure is Structure.SEQUENCE
    fits = not (is_sequence and not shape) and _fits(declared, shape[1:] if is_sequence else shape)
    if not fits or _convert(np.empty(0, dtype), declared.dtype) is None:
        raise _mismatch(declared, shape, dtype, where)


def _tensor(declared: Input, array: Array, where: str | Path) -> Array:
    converted = _convert(array, declared.dtype) if _fits(declared, array.shape) else None
    if converted is None:
        raise _mismatch(declared, array.shape, array.dtype, where)
    return converted


def _mismatch(declared: Input, shape: tuple[int, ...], dtype: np.dtype[Any], where: str | Path) -> FeedError:
    given = f"{dtype}[{','.join(map(str, shape))}]"
    return declared.error(f"is {declared.type_text}, but {given} was given", where=where, remedy=_SAVE)


def _fits(declared: Input, shape: tuple[int, ...]) -> bool:
    if declared.dims is None:
        return True
    sizes = zip(shape, declared.dims, strict=False)
    return len(shape) == len(declared.dims) and all(
        not isinstance(dim, int) or size == dim for size, dim in sizes
    )


def _convert(array: Array, dtype: ir.DataType | None) -> Array | None:
    """The array in that element type; None if numbers would change."""
    wanted = dtype.numpy() if dtype is not None else array.dtype
    if dtype == ir.DataType.STRING:
        return array if array.dtype.kind in "UOST" else None
    if array.dtype == wanted:
        return array
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)  # an .npz does not keep the names of types that are not NumPy's own
    if _category(array.dtype) != _category(wanted):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(wanted)
    is_usual = (array.dtype, wanted) == (np.float64, np.float32)
    is_float = _category(wanted) == "float"
    same = is_usual or np.array_equal(cast.astype(array.dtype), array, equal_nan=is_float)
    return cast if same else None


def _category(dtype: np.dtype[Any]) -> str:
    """`float` or `integer`; NumPy's kind code for other types."""
    try:
        known = ir.DataType.from_numpy(dtype)
    except TypeError:
        return dtype.kind
    if known.is_floating_point():
        return "float"
    return "integer" if known.is_integer() else dtype.kind
