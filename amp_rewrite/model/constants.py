"""Float32 tensors stored in the model: initializers, and the values of Constant nodes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import EXPORT_AGAIN, READABLE, ModelError
from amp_rewrite.files import reading
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import CHUNK, Fit, Half
from amp_rewrite.onnx_types import control_flow

CONSTANT_INPUTS_BELOW = 4
"""Before this IR version, every initializer is also listed as a graph input, and still constant."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A stored float32 tensor and its value in the graph; `node` is its Constant node, if any."""

    value: ir.Value
    tensor: ir.TensorProtocol
    node: ir.Node | None = None


def find(model: ir.Model) -> dict[ir.Value, StoredTensor]:
    """Return the float32 constants of the main graph and the graphs nested in it, by value.

    From IR version 4 on, the caller can override an initializer that is also a graph input: it is not
    constant, and not included.
    """
    overridable = model.ir_version >= CONSTANT_INPUTS_BELOW
    return {s.value: s for s in _in_graph(model.graph, overridable=overridable)}


def _in_graph(graph: ir.Graph, *, overridable: bool) -> Iterator[StoredTensor]:
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        if not (overridable and value.is_graph_input()):
            yield StoredTensor(value, tensor)
    for node in graph:
        tensor = constant(node) if node.op_type == "Constant" else None
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT:
            yield StoredTensor(node.outputs[0], tensor, node)
        for body in control_flow.bodies(node):
            yield from _in_graph(body, overridable=overridable)


def numbers(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """Return the values of a tensor; ModelError if unreadable, or inconsistent with its type and shape."""
    try:
        array = tensor.numpy()
    except (AssertionError, TypeError, ValueError) as error:
        raise _damaged(tensor, f"does not fit its type and shape ({error})") from error
    except MemoryError:
        raise
    except Exception as error:  # a lazy tensor calls the caller's code
        raise _damaged(tensor, f"cannot be read ({type(error).__name__}: {error})") from error
    if array.shape != dims(tensor):  # the result of a lazy tensor is not validated elsewhere
        raise _damaged(tensor, f"does not fit its type and shape (it has the shape {array.shape})")
    return array


def dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return the shape of a tensor; onnx-ir rebuilds that of a protobuf each time, at five times the cost."""
    return tuple(tensor.raw.dims if type(tensor) is ir.serde.TensorProtoTensor else tensor.shape.numpy())


def _damaged(tensor: ir.TensorProtocol, problem: str) -> ModelError:
    what = f"the content of '{tensor.name}'" if tensor.name else "the content of an unnamed tensor"
    return ModelError(f"{what} {problem}", where="the given model", remedy=EXPORT_AGAIN)


def constant(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the value of a Constant node as a tensor.

    None for strings, sparse tensors and attribute references, and for any other node.
    """
    if node.op_type != "Constant" or node.domain:
        return None
    for attribute in node.attributes.values():
        if attribute.is_ref():
            return None
        if attribute.type == ir.AttributeType.TENSOR:
            return attribute.value
        dtype = _SCALARS.get(attribute.type)
        if dtype is not None:
            return ir.tensor(np.asarray(attribute.value, dtype))
    return None


_SCALARS = {
    ir.AttributeType.FLOAT: np.float32,
    ir.AttributeType.FLOATS: np.float32,
    ir.AttributeType.INT: np.int64,
    ir.AttributeType.INTS: np.int64,
}


def stored_as(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor that the model stores for a value; None for a computed value or a graph input."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    return constant(node) if node is not None else None


def is_number(dtype: ir.DataType) -> bool:
    """Return whether the elements of this type are numbers of whole bytes."""
    return dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and dtype.bitwidth >= _BYTE


_BYTE = 8


def has_elements(value: ir.Value) -> bool:
    """Return whether a value exists and, if it is stored, has any elements."""
    tensor = stored_as(value)
    return bool(value.name) and (tensor is None or tensor.size > 0)


# Stored tensors are processed in blocks by several threads, in bounded memory.

THREADS = min(4, os.cpu_count() or 1)
"""The threads that read, convert and write tensors, so that disk reads and rounding overlap."""

_SPAN = 1 << 24
"""Values per task: 64 MiB of float32, so that several threads share one huge tensor."""

Floats = NDArray[Any]
Conversion = Callable[[Floats], NDArray[Any]]
"""An elementwise conversion of stored values."""


_WRITTEN = 1 << 19
"""Values of a block that is converted and written: 2 MiB of float32. With half of that, threads contend."""


def read(
    tensor: ir.TensorProtocol, start: int = 0, stop: int | None = None, block: int = 0
) -> Iterator[Floats]:
    """Yield the values of a float32 or half tensor from flat index `start` to `stop`, in blocks of `block`
    values or CHUNK; a block is valid only until the next is read.

    An external file is read, not mapped: mapped pages count as memory, and truncating a mapped file kills the
    process. Raises ModelError when the values cannot be read.
    """
    stop, block = tensor.size if stop is None else stop, block or CHUNK
    if isinstance(tensor, ir.ExternalTensor):
        yield from _from_file(tensor, start, stop, block)
        return
    if isinstance(tensor, ConvertedTensor):
        yield from map(tensor.convert, read(tensor.source, start, stop, block))
        return
    flat = numbers(tensor).reshape(-1)
    yield from (flat[at : min(at + block, stop)] for at in range(start, stop, block))


def read_whole(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """Return a copy of the values of a stored numeric tensor: a file is read, not mapped."""
    whole = np.empty(tensor.size, tensor.dtype.numpy())
    start = 0
    for block in read(tensor):
        whole[start : start + block.size] = block
        start += block.size
    return whole.reshape(tensor.shape.numpy())


def _from_file(tensor: ir.ExternalTensor, start: int, stop: int, count: int) -> Iterator[Floats]:
    little = tensor.dtype.numpy().newbyteorder("<")  # on every machine
    try:
        with reading.open_regular(Path(tensor.path)) as file:
            file.seek((tensor.offset or 0) + start * little.itemsize)
            buffer = np.empty(min(count, stop - start), little)
            for at in range(start, stop, count):
                block = buffer[: stop - at]
                if file.readinto(block.view(np.uint8).data) < block.nbytes:
                    raise _unreadable(tensor, "it ends too early")
                yield block
    except OSError as error:
        remedy = READABLE if isinstance(error, PermissionError) else _UNCHANGED
        raise _unreadable(tensor, error.strerror or str(error), remedy) from error


_UNCHANGED = "leave the file alone while it is rewritten"


def _unreadable(tensor: ir.ExternalTensor, why: str, remedy: str = _UNCHANGED) -> ModelError:
    return ModelError(f"the data of '{tensor.name}' cannot be read ({why})", where=tensor.path, remedy=remedy)


def fits(tensors: Sequence[ir.TensorProtocol], half: Half) -> list[Fit]:
    """Return the fit of each float32 tensor in `half`: small ones in batches, large ones in threads."""
    sized = [(tensor, math.prod(dims(tensor))) for tensor in tensors]
    small = _small_fits([(tensor, size) for tensor, size in sized if 0 < size <= _SMALL], half)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = [[] if 0 < size <= _SMALL else _parts(tensor, size, half, pool) for tensor, size in sized]
        return [halves.join([part() for part in loaders]) if loaders else next(small) for loaders in parts]


_SMALL, _MANY = 1 << 8, 1 << 10
"""The elements of a small tensor, less than a block, and the number of small tensors in a batch."""


def _small_fits(sized: Sequence[tuple[ir.TensorProtocol, int]], half: Half) -> Iterator[Fit]:
    for at in range(0, len(sized), _MANY):
        arrays = [next(read(tensor, 0, size)) for tensor, size in sized[at : at + _MANY]]
        yield from halves.fit_each(arrays, half)


def _parts(
    tensor: ir.TensorProtocol, size: int, half: Half, pool: ThreadPoolExecutor
) -> list[Callable[[], Fit]]:
    """Return functions that give the fits of the spans of a tensor: computed here if small, else by the pool.

    Only external tensors are split: others copy all their values to return a part.
    """
    if size < CHUNK:
        fit = _fit(tensor, 0, size, half)
        return [lambda: fit]
    span = _SPAN if isinstance(tensor, ir.ExternalTensor) else size
    starts = range(0, size, span)
    return [pool.submit(_fit, tensor, at, min(at + span, size), half).result for at in starts]


def _fit(tensor: ir.TensorProtocol, start: int, stop: int, half: Half) -> Fit:
    return halves.join([halves.fit(block, half) for block in read(tensor, start, stop)])


class ConvertedTensor(ir.LazyTensor):
    """A stored tensor of float32 or half in another type, converted block by block as it is written."""

    __slots__ = ("convert", "source")

    def __init__(
        self, source: ir.TensorProtocol, convert: Conversion, dtype: ir.DataType, name: str | None
    ) -> None:
        self.source, self.convert = source, convert
        super().__init__(
            self._whole,
            dtype=dtype,
            shape=ir.Shape(source.shape.numpy()),
            name=name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props),
        )

    def _whole(self) -> ir.TensorProtocol:
        return ir.Tensor(read_whole(self), dtype=self.dtype, name=self.name)

    def tofile(self, file: Any) -> None:
        """Write the tensor's bytes to a binary file."""
        little = self.dtype.numpy().newbyteorder("<")
        for block in read(self.source, block=_WRITTEN):
            file.write(self.convert(block).astype(little, copy=False).view(np.uint8))
