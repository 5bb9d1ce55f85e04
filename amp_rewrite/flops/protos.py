"""Types with their shapes as onnx's own messages, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir

Shape = tuple[int, ...]
Dim = int | None
"""A dimension, or None where its size is not known."""
Sizes = Callable[[str | None], Dim]
"""The size of a symbol, as far as it is known."""


def tensor(dtype: ir.DataType, dims: Iterable[Dim] | None = None) -> onnx.TypeProto:
    """The type of a tensor; without `dims` its rank is unknown."""
    shape = None if dims is None else tuple(dims)
    return onnx.helper.make_tensor_type_proto(int(dtype), shape)


def dims(proto: onnx.TypeProto | None) -> tuple[Dim, ...] | None:
    """The dimensions of a tensor's type; None where even the rank is not known, or it is no tensor."""
    if proto is None or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in proto.tensor_type.shape.dim)


def shape(proto: onnx.TypeProto | None) -> Shape | None:
    """The shape that a type says in full; None where a part of it is not known, or is no size."""
    found = dims(proto)
    if found is None or any(d is None or d < 0 for d in found):
        return None
    return tuple(d for d in found if d is not None)


def declared(value: ir.Value, dtype: ir.TypeProtocol | None, sizes: Sizes) -> onnx.TypeProto | None:
    """What the model says of a value itself, with the sizes of its symbols put in."""
    kind = value.type or dtype
    if kind is None:
        return None
    if not isinstance(kind, (ir.TensorType, ir.SparseTensorType)):
        return ir.serde.serialize_type(kind)
    if value.shape is None:
        return tensor(kind.dtype)
    return tensor(kind.dtype, [d if isinstance(d, int) else sizes(d.value) for d in value.shape])


def refined(found: onnx.TypeProto | None, said: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """What was inferred, with the gaps filled by what the model says."""
    if found is None:
        return said
    inferred, stated = dims(found), dims(said)
    if said is None or stated is None or not found.HasField("tensor_type"):
        return found
    if inferred is None:
        return said
    if len(inferred) != len(stated):
        return found
    both = (mine if mine is not None else other for mine, other in zip(inferred, stated, strict=True))
    return tensor(ir.DataType(found.tensor_type.elem_type), both)
