"""Given values as an input takes them: in its type, and of its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import FeedError
from amp_rewrite.running.inputs.model_inputs import Dim, Input, Structure

Array = NDArray[Any]


def coerce(given: Input, value: Any, where: Path) -> Any:
    """The value in the input's type: one tensor, or a list of them for a sequence.

    Numbers change their type where each stays what it is, and from float64 to float32. A sequence may
    come as one array, with its tensors along the first axis. Raises FeedError when it does not fit.
    """
    if value is None and not given.is_optional:
        raise given.error(f"is {given.type_text}, and what is given is nothing", where=where, remedy=_SAVE)
    if value is None or given.structure is Structure.OTHER:
        return value
    if given.structure is not Structure.SEQUENCE:
        return _tensor(given, np.asarray(value), where)
    if np.ndim(value) == 0 and not isinstance(value, list):
        raise _misfit(given, (), np.asarray(value).dtype, where)
    return [_tensor(given, np.asarray(item), where) for item in value]


_SAVE = "save it in that type and shape"


def check_declared(given: Input, shape: tuple[int, ...], dtype: np.dtype[Any], where: Path) -> None:
    """FeedError, as `fit` raises it, when no array of that shape and type is a value of the input."""
    if given.structure is Structure.OTHER:
        return
    inner = shape[1:] if given.structure is Structure.SEQUENCE else shape
    lacks_rank = given.structure is Structure.SEQUENCE and not shape
    misshapen = given.dims is not None and not _has_shape(inner, given.dims)
    if lacks_rank or misshapen or _in_type(np.empty(0, dtype), given.dtype) is None:
        raise _misfit(given, shape, dtype, where)


def _tensor(given: Input, array: Array, where: Path) -> Array:
    if given.dims is not None and not _has_shape(array.shape, given.dims):
        raise _misfit(given, array.shape, array.dtype, where)
    fitted = _in_type(array, given.dtype)
    if fitted is None:
        raise _misfit(given, array.shape, array.dtype, where)
    return fitted


def _misfit(given: Input, sizes: tuple[int, ...], dtype: np.dtype[Any], where: Path) -> FeedError:
    shape = ",".join(map(str, sizes))
    return given.error(
        f"is {given.type_text}, and what is given is {dtype}[{shape}]",
        where=where,
        remedy=_SAVE,
    )


def _has_shape(shape: tuple[int, ...], dims: tuple[Dim, ...]) -> bool:
    fits = (not isinstance(dim, int) or size == dim for size, dim in zip(shape, dims, strict=False))
    return len(shape) == len(dims) and all(fits)


def _in_type(array: Array, dtype: ir.DataType | None) -> Array | None:
    """The array in that type; None where numbers would change."""
    wanted = dtype.numpy() if dtype is not None else array.dtype
    if dtype == ir.DataType.STRING:
        return array if array.dtype.kind in "UOST" else None
    if array.dtype == wanted:
        return array
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)  # an .npz forgets the name of a type that is not NumPy's own
    return _cast(array, wanted) if _kind(array.dtype) == _kind(wanted) else None


def _cast(array: Array, wanted: np.dtype[Any]) -> Array | None:
    with np.errstate(all="ignore"):
        cast = array.astype(wanted)
    usual = (array.dtype, wanted) == (np.float64, np.float32)
    same = usual or np.array_equal(cast.astype(array.dtype), array, equal_nan=_kind(wanted) == "float")
    return cast if same else None


def _kind(dtype: np.dtype[Any]) -> str:
    """Float or integer; for what is neither, NumPy's letter."""
    try:
        known = ir.DataType.from_numpy(dtype)
    except TypeError:
        return dtype.kind
    kinds = {"float": known.is_floating_point(), "integer": known.is_integer()}
    return next((name for name, fits in kinds.items() if fits), dtype.kind)
