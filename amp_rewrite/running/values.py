"""Arrays <-> what onnxruntime takes and gives: it knows bfloat16 by its bits alone."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "tensor(bfloat16)"
"""The type as onnxruntime writes it."""

_FLOATS: Mapping[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_NUMBER = 16
"""TensorProto.BFLOAT16."""


def typed(value: Any, kind: str) -> Any:
    """An array of numbers in the element type of the float input that it is for; everything else as it is."""
    if kind in _FLOATS and isinstance(value, np.ndarray) and _is_cast(value.dtype, _FLOATS[kind]):
        with np.errstate(over="ignore"):
            return value.astype(_FLOATS[kind])
    return value


def _is_cast(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values are cast without a word: a complex number would lose a part of itself."""
    return given != wanted and given.kind in _REAL


_REAL = "biufV"
"""NumPy's letters for truth values, integers and floats; bfloat16 is an extension of ml_dtypes's, a V."""


def to_value(ort_value: Any, array: Any, kind: str) -> Any:
    """An array as a value of onnxruntime's class `ort_value`, which may lie in the memory of the array."""
    if kind == BFLOAT16:
        return ort_value.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _NUMBER)
    return ort_value.ortvalue_from_numpy(np.asarray(array, order="C"))


def to_array(value: Any) -> NDArray[Any]:
    """The numbers of one of onnxruntime's values that lies in main memory."""
    if value.data_type() != BFLOAT16:
        return value.numpy()
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(bits, np.uint16).reshape(value.shape()).view(ml_dtypes.bfloat16)
