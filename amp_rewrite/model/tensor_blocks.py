"""Stored tensors a block at a time: memory does not grow with their size, and threads share the work."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import READABLE, ModelError
from amp_rewrite.model import constants
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import CHUNK, Fit, Half

THREADS = min(4, os.cpu_count() or 1)
"""Threads that look at tensors, or convert and write them: reading a disk and rounding numbers overlap."""

_SPAN = 1 << 24
"""How many values a thread looks at before it takes the next: 64 MiB, so that one huge tensor is shared."""

Floats = NDArray[Any]
Conversion = Callable[[Floats], NDArray[Any]]
"""What becomes of stored numbers, one by one."""


def read(tensor: ir.TensorProtocol, start: int = 0, stop: int | None = None) -> Iterator[Floats]:
    """The values of a tensor from `start` to `stop` in its flat order, a block at a time: float32 or half.

    What lies in a file is read, not mapped: mapped pages count as memory, and a file that shrinks meanwhile
    is an error, not the end of the process. Raises ModelError when it cannot be read.
    """
    stop = tensor.size if stop is None else stop
    if isinstance(tensor, ir.ExternalTensor):
        yield from _from_file(tensor, start, stop)
        return
    flat = constants.numbers(tensor).reshape(-1)
    yield from (flat[at : min(at + CHUNK, stop)] for at in range(start, stop, CHUNK))


def _from_file(tensor: ir.ExternalTensor, start: int, stop: int) -> Iterator[Floats]:
    little = tensor.dtype.numpy().newbyteorder("<")  # on every machine
    try:
        with open(tensor.path, "rb", buffering=0) as file:  # noqa: PTH123 - onnx-ir's path is text
            file.seek((tensor.offset or 0) + start * little.itemsize)
            for at in range(start, stop, CHUNK):
                block = np.empty(min(CHUNK, stop - at), little)
                if not _fill(block, file):
                    raise _unreadable(tensor, "it ends too early")
                yield block
    except OSError as error:
        remedy = READABLE if isinstance(error, PermissionError) else _UNCHANGED
        raise _unreadable(tensor, error.strerror or str(error), remedy) from error


def _fill(block: Floats, file: io.FileIO) -> bool:
    """Reads a block as a whole; false where the file ends before it does."""
    left = block.view(np.uint8).data
    while left:
        count = file.readinto(left)
        if not count:
            return False
        left = left[count:]
    return True


_UNCHANGED = "leave the file alone while it is rewritten"


def _unreadable(tensor: ir.ExternalTensor, why: str, remedy: str = _UNCHANGED) -> ModelError:
    return ModelError(
        f"the data of '{tensor.name}' cannot be read ({why})",
        where=tensor.path,
        remedy=remedy,
    )


def fits(tensors: Iterable[ir.TensorProtocol], half: Half) -> list[Fit]:
    """How each of these float32 tensors fits into `half`; large ones are shared out among threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        parts = [_parts(tensor, half, pool) for tensor in tensors]
        return [halves.join([part() for part in each]) for each in parts]


def _parts(tensor: ir.TensorProtocol, half: Half, pool: ThreadPoolExecutor) -> list[Callable[[], Fit]]:
    """What gives the fits of the spans of a tensor: found here for a small one, by the pool for a large one.

    Only what lies in a file is divided: other kinds of tensors copy all of themselves to give a part.
    """
    if tensor.size < CHUNK:
        found = _fit(tensor, 0, tensor.size, half)
        return [lambda: found]
    span = _SPAN if isinstance(tensor, ir.ExternalTensor) else tensor.size
    starts = range(0, tensor.size, span)
    return [pool.submit(_fit, tensor, at, min(at + span, tensor.size), half).result for at in starts]


def _fit(tensor: ir.TensorProtocol, start: int, stop: int, half: Half) -> Fit:
    return halves.join([halves.fit(block, half) for block in read(tensor, start, stop)])


class ConvertedTensor(ir.LazyTensor):
    """A stored tensor of float32 or half with other numbers: changed when it is written, block by block."""

    __slots__ = ("_change", "_source")

    def __init__(
        self, source: ir.TensorProtocol, change: Conversion, dtype: ir.DataType, name: str | None
    ) -> None:
        self._source, self._change = source, change
        super().__init__(
            self._whole,
            dtype=dtype,
            shape=ir.Shape(source.shape.numpy()),
            name=name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props),
        )

    def _whole(self) -> ir.TensorProtocol:
        made = np.empty(self.size, self.dtype.numpy())
        start = 0
        for block in read(self._source):
            made[start : start + block.size] = self._change(block)
            start += block.size
        return ir.Tensor(made.reshape(self.shape.numpy()), dtype=self.dtype, name=self.name)

    def tofile(self, file: Any) -> None:
        """Writes the tensor's bytes to a binary file."""
        little = self.dtype.numpy().newbyteorder("<")
        for block in read(self._source):
            file.write(self._change(block).astype(little, copy=False).view(np.uint8))
