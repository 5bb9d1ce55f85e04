"""Tensors that hold their data more than once, or say that it lies elsewhere while it is there."""

from __future__ import annotations

import onnx


def hold_once(tensor: onnx.TensorProto) -> None:
    """Leaves one of several fields with data, as runtimes do: the raw one, or that of the tensor's type."""
    held = [name for name in _DATA if len(getattr(tensor, name))]
    if len(held) + tensor.HasField("raw_data") > 1:
        read = "raw_data" if tensor.HasField("raw_data") else _FIELDS.get(tensor.data_type, "int32_data")
        for name in held:
            if name != read:
                tensor.ClearField(name)


def is_there(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor holds any data itself."""
    return tensor.HasField("raw_data") or any(len(getattr(tensor, name)) for name in _DATA)


_DATA = "float_data int32_data string_data int64_data double_data uint64_data".split()

_FIELDS: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float_data",
    onnx.TensorProto.INT64: "int64_data",
    onnx.TensorProto.DOUBLE: "double_data",
    onnx.TensorProto.UINT64: "uint64_data",
    onnx.TensorProto.UINT32: "uint64_data",
    onnx.TensorProto.STRING: "string_data",
    onnx.TensorProto.COMPLEX64: "float_data",
    onnx.TensorProto.COMPLEX128: "double_data",
}
"""Where the data of a type is; that of all others is in int32_data."""
