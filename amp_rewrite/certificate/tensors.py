"""Reading of models as unmodified protobufs, and of tensor data, inline or external."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from amp_rewrite.certificate.element_checks import Array
from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.files import reading

BLOCK = 1 << 18
"""The elements of a block: 1 MiB of float32 fits a core's cache, and each thread holds one in memory."""

_BITS = {
    getattr(TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(TensorProto, name)
}
"""The bits per element of the types narrower than a byte."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a model by its path, and the folders that may hold its external data."""

    path: Path
    roots: frozenset[Path]

    @classmethod
    def of(cls, model: Path) -> Folder:
        """Return the folder of a model file; external data may be beside the file or a link to it."""
        return cls(model.parent, frozenset((model.parent.resolve(), model.resolve().parent)))


def dims(tensor: TensorProto) -> tuple[int, ...]:
    """Return the shape of a tensor; ModelError for a negative size."""
    shape = tuple(tensor.dims)
    if min(shape, default=0) < 0:
        raise _damage_error(tensor, "has a negative size")
    return shape


def initial(graph: GraphProto) -> Mapping[str, Any]:
    """Return the initializers of a graph by name; ModelError for two of one name that differ, of which
    onnxruntime 1.32 takes the first if they are large, else the last.
    """
    by_name: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
    by_name |= {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    if len(by_name) < len(graph.initializer) + len(graph.sparse_initializer):
        entries = [(tensor.name, tensor) for tensor in graph.initializer]
        entries += [(tensor.values.name, tensor) for tensor in graph.sparse_initializer]
        for name, tensor in entries:
            if tensor.SerializeToString() != by_name[name].SerializeToString():
                raise ModelError(f"stores '{name}' twice, with different values", remedy=EXPORT_AGAIN)
    return by_name


def elements(tensor: TensorProto, folder: Folder | None) -> Array:
    """Return the elements of a numeric tensor in order, which a file may hold: they are mapped, not read.

    Raises ModelError if they cannot be read, or if their number contradicts the shape.
    """
    dtype, count = _dtype(tensor).newbyteorder("<"), prod(dims(tensor))
    bits = _BITS.get(tensor.data_type)
    stored, size = (dtype, count) if bits is None else (np.dtype(np.uint8), (count * bits + 7) // 8)
    if _is_external(tensor, folder):
        flat = _external(tensor, folder, stored, size)
    elif not tensor.HasField("raw_data"):
        return _listed(tensor, count)
    elif len(tensor.raw_data) != size * stored.itemsize:
        raise _damage_error(tensor, "does not fit its shape")
    else:
        flat = np.frombuffer(tensor.raw_data, stored)
    if bits is None:
        return flat
    packed = TensorProto(dims=[count], data_type=tensor.data_type, raw_data=flat.tobytes())
    return numpy_helper.to_array(packed)


def _listed(tensor: TensorProto, count: int) -> Array:
    """Return the elements of a tensor that lists them in a field of their type."""
    try:
        flat = numpy_helper.to_array(tensor).reshape(-1)
    except Exception as error:  # it raises errors of many kinds
        raise _damage_error(tensor, "does not fit its type and shape") from error
    if flat.size != count:
        raise _damage_error(tensor, "does not fit its shape")
    return flat


def blocks(flat: Array) -> Iterator[Array]:
    """Return elements in blocks."""
    return (flat[at : at + BLOCK] for at in range(0, flat.size, BLOCK))


def release(flat: Array) -> None:
    """Give back the pages of a mapped file, which count as memory of the process; they are read again."""
    base: Any = flat
    while isinstance(base, np.ndarray):
        base = base.base  # pyright: ignore[reportUnknownMemberType]
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _is_external(tensor: TensorProto, folder: Folder | None) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL and bool(folder or not tensor.HasField("raw_data"))


def is_raw(tensor: TensorProto) -> bool:
    """Return whether the raw data of a tensor holds its elements, whatever other fields are set."""
    if tensor.data_type == TensorProto.STRING or tensor.data_location == TensorProto.EXTERNAL:
        return False
    return tensor.HasField("raw_data")


def whole(tensor: TensorProto, folder: Folder | None) -> Array:
    """Return a tensor as one array; raises ModelError as `elements` does."""
    try:
        return elements(tensor, folder).reshape(dims(tensor))
    except ValueError as error:  # the sizes besides a 0 are too large
        raise _damage_error(tensor, "has sizes that are too large") from error


def _dtype(tensor: TensorProto) -> np.dtype[Any]:
    try:
        return helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError) as error:
        raise _damage_error(tensor, f"is of the unknown type {tensor.data_type}") from error


def _external(tensor: TensorProto, folder: Folder | None, dtype: np.dtype[Any], count: int) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, length = entries.get("location", ""), entries.get("length") or "0"
    if length not in ("0", str(count * dtype.itemsize)):  # onnxruntime takes 0 as unspecified
        raise _damage_error(tensor, "does not fit its shape")
    place = _place(tensor, location, folder)
    try:
        offset = _offset(entries)
        with reading.open_regular(place) as file:
            if count and file.seek(0, os.SEEK_END) < offset + count * dtype.itemsize:
                raise _damage_error(tensor, f"ends beyond the end of {place.name}")
            return np.asarray(np.memmap(file, dtype, "r", offset, (count,))) if count else np.empty(0, dtype)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the data of '{tensor.name}' cannot be read from '{location}'",
            remedy="put the file beside the model",
        ) from error


def _offset(entries: Mapping[str, str]) -> int:
    """Return the byte offset of a tensor in its file; ValueError for anything but digits."""
    text = entries.get("offset") or "0"
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _place(tensor: TensorProto, location: str, folder: Folder | None) -> Path:
    """Return the path of an external tensor, which must be in the folder of the model."""
    if folder is None:
        problem = "keeps tensors in files, and does not say in which folder"
        raise ModelError(problem, remedy="give its path, or load it with its external data")
    try:
        place = (folder.path / location).resolve()
    except (OSError, ValueError) as error:
        raise _damage_error(tensor, "names a file that cannot be") from error
    if folder.roots.isdisjoint(place.parents):
        raise _damage_error(tensor, "would lie outside the model's folder")
    return place


def _damage_error(tensor: TensorProto, problem: str) -> ModelError:
    return ModelError(f"the content of '{tensor.name}' {problem}", remedy=EXPORT_AGAIN)


# ---- models


@dataclass(frozen=True, slots=True)
class InFolder:
    """A model in memory, and the folder of its external data."""

    model: ModelProto
    folder: Path


Source = str | os.PathLike[str] | bytes | ModelProto | InFolder
"""A path, serialised bytes, or a ModelProto with or without a folder."""


def read_model(source: Any) -> tuple[ModelProto, Folder | None, str]:
    """Return a model, the folder of its external data, None if unknown, and the source that errors name.

    Raises ModelError for a missing, truncated or invalid model.
    """
    if isinstance(source, ModelProto):
        return source, None, "the given model"
    if isinstance(source, InFolder):
        return source.model, Folder.of(source.folder / "model.onnx"), "the given model"
    if isinstance(source, bytes):
        return _parse(lambda: source, "the given bytes"), None, "the given bytes"
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _parse(lambda: reading.read(path), str(path)), Folder.of(path), str(path)
    inner = ", such as its attribute model" if hasattr(source, "model") else ""
    remedy = f"give a path, bytes, or a ModelProto{inner}"
    raise ModelError(f"{type(source).__name__} is not a model", remedy=remedy)


def _parse(data: Callable[[], bytes], where: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data())
    except FileNotFoundError as error:
        raise ModelError("there is no such file", where=where, remedy="check the path") from error
    except OSError as error:
        raise ModelError(reading.problem(error), where=where, remedy=reading.remedy(error)) from error
    except (DecodeError, ValueError) as error:
        raise ModelError(
            "is not an ONNX model, or only a part of one", where=where, remedy=EXPORT_AGAIN
        ) from error
    if not (model.HasField("ir_version") and model.HasField("graph")):
        raise ModelError("is not an ONNX model", where=where, remedy=EXPORT_AGAIN)
    return model
