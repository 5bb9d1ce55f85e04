"""What a transfer function sees of a node: the intervals, sizes and stored numbers of its inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.bounds.intervals import UNKNOWN, ZERO, Interval, hull, rounded, summed
from amp_rewrite.model import constants, patterns
from amp_rewrite.model.constants import dims, numbers, stored_as

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@functools.cache
def of_type(dtype: ir.DataType | None) -> Interval:
    """Return the range of an element type; UNKNOWN for floats."""
    if dtype == ir.DataType.BOOL:
        return Interval(0.0, 1.0)
    if dtype is None or not dtype.is_integer() or dtype.bitwidth < 8:
        return UNKNOWN
    limits = np.iinfo(dtype.numpy())
    return Interval(float(limits.min), float(limits.max))


def of_tensor(tensor: ir.TensorProtocol) -> Interval:
    """Return the exact interval of a stored tensor of numbers, NaN aside."""
    is_number = tensor.dtype.is_floating_point() or tensor.dtype.is_integer()
    if not is_number or tensor.dtype.bitwidth < 8:
        return of_type(tensor.dtype)
    blocks = (np.asarray(block, np.float64) for block in constants.read(tensor) if block.size)
    ends = [rounded(float(np.fmin.reduce(block)), float(np.fmax.reduce(block))) for block in blocks]
    return hull(*ends) if ends else ZERO


@dataclass(frozen=True, slots=True)
class Operands:
    """The inputs of a node; `variable` are the stored values that a caller can override."""

    node: ir.Node
    of: Callable[[ir.Value | None], Interval]
    variable: Collection[ir.Value]

    def __getitem__(self, port: int) -> Interval:
        """Return the interval of an input."""
        return self.of(self.value(port))

    @property
    def all(self) -> list[Interval]:
        """The intervals of all inputs."""
        return [self.of(value) for value in self.node.inputs]

    def value(self, port: int) -> ir.Value | None:
        """Return an input; None if it is omitted."""
        return self.node.inputs[port] if port < len(self.node.inputs) else None

    def producer(self, port: int, *operators: str) -> ir.Node | None:
        """Return the producer of an input, if it is one of these standard operators."""
        value = self.value(port)
        node = value.producer() if value is not None else None
        return node if node is not None and patterns.is_default(node, *operators) else None

    def attribute(self, name: str, default: float) -> float:
        """Return an attribute that is a float."""
        return self.node.attributes.get_float(name, default)

    def given(self, port: int, name: str, default: float) -> Interval:
        """Return the interval of an input that was an attribute in old opsets."""
        number = self.attribute(name, default)
        return self[port] if self.value(port) is not None else Interval(number, number)

    def scalar(self, port: int) -> float | None:
        """Return the number of an input that is a stored scalar."""
        value = self.value(port)
        return None if value is None or value in self.variable else patterns.scalar(value)

    def dims(self, port: int) -> tuple[int | None, ...]:
        """Return the sizes of an input, None for open ones; nothing if its rank is unknown."""
        value = self.value(port)
        tensor = stored_as(value)
        if tensor is not None:
            return dims(tensor)
        shape = value.shape if value is not None and value.shape is not None else ()
        return tuple(size if isinstance(size, int) else None for size in shape)

    def largest_sum(self, port: int, *axes: int) -> float:
        """Return the largest sum of magnitudes along axes of stored weights, rounded; infinity of others."""
        value = self.value(port)
        tensor = None if value is None or value in self.variable else stored_as(value)
        if tensor is None or tensor.dtype not in _FLOATS or not tensor.size or len(dims(tensor)) < 2:
            return math.inf
        sums = np.abs(numbers(tensor).astype(np.float32)).sum(axis=axes, dtype=np.float64)
        largest = float(sums.max()) * summed(tensor.size // sums.size)
        return largest if math.isfinite(largest) else math.inf
