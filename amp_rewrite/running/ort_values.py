"""NumPy arrays <-> onnxruntime's OrtValues; onnxruntime handles bfloat16 as raw bits only."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "tensor(bfloat16)"
"""The type string of onnxruntime."""

_FLOATS: Mapping[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_BFLOAT16_ENUM = 16
"""TensorProto.BFLOAT16."""
_REAL = "biufV"
"""NumPy's codes for booleans, integers and floats; V includes ml_dtypes' bfloat16. Complex numbers are not
converted: they would lose their imaginary part.
"""


def to_input_type(value: Any, input_type: str) -> Any:
    """A numeric array, converted to the element type of a float input; everything else unchanged."""
    wanted = _FLOATS.get(input_type)
    if wanted is None or not isinstance(value, np.ndarray):
        return value
    if value.dtype == wanted or value.dtype.kind not in _REAL:
        return value
    with np.errstate(over="ignore"):
        return value.astype(wanted)


def to_ort_value(ort_value: Any, array: Any, input_type: str) -> Any:
    """An array as an instance of onnxruntime's class `ort_value`, which may share the array's memory."""
    if input_type == BFLOAT16:
        return ort_value.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16_ENUM)
    return ort_value.ortvalue_from_numpy(np.asarray(array, order="C"))


def from_ort_value(value: Any) -> NDArray[Any]:
    """The array in an OrtValue that is in main memory."""
    if value.data_type() != BFLOAT16:
        return value.numpy()
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(bits, np.uint16).reshape(value.shape()).view(ml_dtypes.bfloat16)
