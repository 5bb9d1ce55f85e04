"""Conversions between shapes and onnx's TypeProto messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir

Shape = tuple[int, ...]
DimSize = int | None
"""The size of a dimension, None where unknown."""
SymbolSizes = Callable[[str | None], DimSize]
"""Maps a symbol to its size, None where unknown."""


def tensor(dtype: ir.DataType, dims: Iterable[DimSize] | None = None) -> onnx.TypeProto:
    """The type of a tensor; without `dims` its rank is unknown."""
    shape = None if dims is None else tuple(dims)
    return onnx.helper.make_tensor_type_proto(int(dtype), shape)


def dims(proto: onnx.TypeProto | None) -> tuple[DimSize, ...] | None:
    """The dimensions of a tensor type; None where the rank is unknown, or the type is not a tensor."""
    if proto is None or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in proto.tensor_type.shape.dim)


def shape(proto: onnx.TypeProto | None) -> Shape | None:
    """The shape of a type if every dimension is a known size, else None."""
    found = dims(proto)
    if found is None or any(d is None or d < 0 for d in found):
        return None
    return tuple(d for d in found if d is not None)


def declared(value: ir.Value, dtype: ir.TypeProtocol | None, sizes: SymbolSizes) -> onnx.TypeProto | None:
    """The type that the model declares for a value, with the symbols replaced by their sizes."""
    kind = value.type or dtype
    if kind is None:
        return None
    if not isinstance(kind, (ir.TensorType, ir.SparseTensorType)):
        return ir.serde.serialize_type(kind)
    if value.shape is None:
        return tensor(kind.dtype)
    return tensor(kind.dtype, [d if isinstance(d, int) else sizes(d.value) for d in value.shape])


def refined(found: onnx.TypeProto | None, declared: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """The inferred type, with unknown dimensions taken from the declared one."""
    if found is None:
        return declared
    inferred, stated = dims(found), dims(declared)
    if declared is None or stated is None or not found.HasField("tensor_type"):
        return found
    if inferred is None:
        return declared
    if len(inferred) != len(stated):
        return found
    both = (mine if mine is not None else other for mine, other in zip(inferred, stated, strict=True))
    return tensor(ir.DataType(found.tensor_type.elem_type), both)
