"""The values of stored tensors, in blocks, from the model or from the files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.files import reading

BLOCK = 1 << 20
"""Elements of a block: of a tensor in a file no more is in memory."""

Array = NDArray[Any]

_PACKED = frozenset(
    getattr(TensorProto, name)
    for name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")
    if hasattr(TensorProto, name)
)
"""Element types of less than a byte."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a model lies, by the path that it was read from, and where the file itself does."""

    path: Path
    roots: frozenset[Path]

    @classmethod
    def of(cls, model: Path) -> Folder:
        """The folder of a model file; where that is a link, the data may lie beside it or beside the file."""
        return cls(model.parent, frozenset((model.parent.resolve(), model.resolve().parent)))


def dims(tensor: TensorProto) -> tuple[int, ...]:
    """The shape of a tensor; ModelError for a negative size."""
    found = tuple(tensor.dims)
    if min(found, default=0) < 0:
        raise _damaged(tensor, "has a negative size")
    return found


def blocks(tensor: TensorProto, folder: Folder | None) -> Iterator[Array]:
    """The elements of a tensor of numbers, in order; those of less than a byte as they are packed in a file.

    Raises ModelError where they cannot be read, or are not as many as the shape says.
    """
    if tensor.data_location == TensorProto.EXTERNAL and not tensor.HasField("raw_data"):
        yield from _external(tensor, folder)
        return
    flat = _internal(tensor)
    yield from (flat[at : at + BLOCK] for at in range(0, flat.size, BLOCK))


def whole(tensor: TensorProto, folder: Folder | None) -> Array:
    """All elements in their shape; ModelError as `blocks`."""
    parts = [*blocks(tensor, folder)]
    shape = dims(tensor)
    return np.concatenate(parts).reshape(shape) if parts else np.zeros(shape, _dtype(tensor))


def texts(tensor: TensorProto) -> Sequence[bytes]:
    """The elements of a tensor of strings."""
    return tuple(tensor.string_data)


def _dtype(tensor: TensorProto) -> np.dtype[Any]:
    try:
        return helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(tensor, f"is of the unknown type {tensor.data_type}") from error


def _internal(tensor: TensorProto) -> Array:
    dtype, count = _dtype(tensor), prod(dims(tensor))
    if tensor.HasField("raw_data") and tensor.data_type not in _PACKED:
        raw = tensor.raw_data
        if len(raw) != count * dtype.itemsize:
            raise _damaged(tensor, "does not fit its shape")
        return np.frombuffer(raw, dtype.newbyteorder("<"))
    try:
        flat = numpy_helper.to_array(tensor).reshape(-1)
    except Exception as error:  # it raises errors of many kinds
        raise _damaged(tensor, "does not fit its type and shape") from error
    if flat.size != count:
        raise _damaged(tensor, "does not fit its shape")
    return flat


def _external(tensor: TensorProto, folder: Folder | None) -> Iterator[Array]:
    dtype, count = _dtype(tensor), prod(dims(tensor))
    if tensor.data_type in _PACKED:
        bits = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize and 4
        dtype, count = np.dtype(np.uint8), (count * bits + 7) // 8
    said = {entry.key: entry.value for entry in tensor.external_data}
    place = _place(tensor, said.get("location", ""), folder)
    try:
        with reading.open_regular(place) as file:
            file.seek(int(said.get("offset") or 0))
            for at in range(0, count, BLOCK):
                wanted = min(BLOCK, count - at)
                block = np.fromfile(file, dtype.newbyteorder("<"), wanted)
                if block.size < wanted:
                    raise _damaged(tensor, f"ends beyond the end of {place.name}")
                yield block
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the data of '{tensor.name}' cannot be read from '{said.get('location', '')}'",
            remedy="put the file beside the model",
        ) from error


def _place(tensor: TensorProto, location: str, folder: Folder | None) -> Path:
    """The file of an external tensor, which is in the folder of the model."""
    if folder is None:
        problem = "keeps tensors in files, and does not say in which folder"
        raise ModelError(problem, remedy="give its path, or load it with its external data")
    try:
        place = (folder.path / location).resolve()
    except (OSError, ValueError) as error:
        raise _damaged(tensor, "names a file that cannot be") from error
    if folder.roots.isdisjoint(place.parents):
        raise _damaged(tensor, "would lie outside the model's folder")
    return place


def _damaged(tensor: TensorProto, problem: str) -> ModelError:
    return ModelError(f"the content of '{tensor.name}' {problem}", remedy=EXPORT_AGAIN)
