"""What a rule sees of a node: bounds, sizes and constants of its inputs, and its attributes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from amp_rewrite.bounds.bound import UNKNOWN, Bound, hull, interval, summed
from amp_rewrite.model import constants
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.model.patterns import source
from amp_rewrite.onnx_types.element_types import Types

Dim = int | str | None
Dims = tuple[Dim, ...]
WIDE = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE))
"""The element types for which rules of arithmetic hold."""
_NARROWER = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
_READ = 64
"""The most numbers that a rule reads from a stored tensor: axes, shapes, bounds."""


@functools.cache
def of_type(dtype: ir.DataType | None) -> Bound:
    """Return the range of an element type; UNKNOWN for floats."""
    if dtype == ir.DataType.BOOL:
        return interval(0.0, 1.0)
    if dtype is None or not dtype.is_integer() or dtype.bitwidth < 8:
        return UNKNOWN
    limits = np.iinfo(dtype.numpy())
    return interval(float(limits.min), float(limits.max))


def of_tensor(tensor: ir.TensorProtocol) -> Bound:
    """Return the exact interval of a stored tensor of numbers, NaN aside."""
    if not tensor.dtype.is_floating_point():
        return _of_integers(tensor)
    ends = [interval(*_ends(block)) for block in constants.read(tensor) if block.size]
    return hull(*ends) if ends else interval(0.0, 0.0)


def _of_integers(tensor: ir.TensorProtocol) -> Bound:
    if not tensor.dtype.is_integer() or tensor.size > _SMALL:
        return of_type(tensor.dtype)
    array = constants.numbers(tensor)
    return interval(float(array.min()), float(array.max())) if array.size else interval(0.0, 0.0)


_SMALL = 1 << 20
"""The most integers that are read."""


def _ends(array: np.ndarray) -> tuple[float, float]:
    flat = np.asarray(array, np.float64).reshape(-1)
    return float(np.fmin.reduce(flat)), float(np.fmax.reduce(flat))


def largest_sum(tensor: ir.TensorProtocol, rows: int, along: int) -> float:
    """Return the largest sum of magnitudes of a stored tensor as a matrix of so many rows: of a column for
    `along` 0, of a row for 1; with the rounding of these sums, infinity for numbers that are not finite.
    """
    matrix = np.abs(constants.numbers(tensor).astype(np.float32).reshape(rows, -1))
    sums = matrix.sum(axis=along, dtype=np.float64)
    largest = float(sums.max(initial=0.0)) * summed(matrix.shape[along])
    return largest if math.isfinite(largest) else math.inf


@dataclass(slots=True)
class Known:
    """The bounds of all values so far, their types, and what was measured of stored tensors."""

    bounds: dict[ir.Value, Bound]
    variable: frozenset[ir.Value]
    types: Types
    quotients: Mapping[ir.Node, Bound] = field(default_factory=dict[ir.Node, Bound])
    tensors: dict[ir.Value, Bound] = field(default_factory=dict[ir.Value, Bound])
    sums: dict[tuple[ir.Value, int, int], float] = field(
        default_factory=dict[tuple[ir.Value, int, int], float]
    )

    def of(self, value: ir.Value | None) -> Bound:
        """Return the bound of a value; a stored one is measured at the first call."""
        if value is None:
            return UNKNOWN
        bound = self.bounds.get(value)
        if bound is None:
            bound = self.bounds[value] = self._measured(value)
        return bound

    def _measured(self, value: ir.Value) -> Bound:
        tensor = self.stored(value)
        if tensor is None:
            return UNKNOWN
        if value not in self.tensors:
            self.tensors[value] = of_tensor(tensor)
        return self.tensors[value]

    def stored(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of a stored value that no caller can override."""
        return None if value is None or value in self.variable else stored_as(value)

    def sum_of(self, value: ir.Value, rows: int, along: int) -> float:
        """Return the largest sum of magnitudes of a stored tensor, as `largest_sum`; infinity for others."""
        tensor = self.stored(value)
        if tensor is None or tensor.dtype not in _NARROWER or not tensor.size:
            return math.inf
        key = value, rows, along
        if key not in self.sums:
            self.sums[key] = largest_sum(tensor, rows, along)
        return self.sums[key]

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type of a tensor; None for other values, or if it is unknown."""
        kind = self.types.get(value)
        return kind.dtype if isinstance(kind, ir.TensorType) else None

    def dims(self, value: ir.Value | None) -> Dims | None:
        """Return the sizes of a value's axes, symbolic ones by name; None if its rank is unknown."""
        if value is None or value.shape is None:
            tensor = stored_as(value)
            return None if tensor is None else dims(tensor)
        return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def exact_origin(value: ir.Value, types: Types) -> ir.Value:
    """Return the value of which this one is an exact copy, by Identity or a Cast that loses nothing."""

    def copies(node: ir.Node) -> bool:
        return node.op_type == "Identity" or (node.op_type == "Cast" and _is_lossless(node, types))

    return source(value, copies)


def _is_lossless(cast: ir.Node, types: Types) -> bool:
    """Whether a Cast is to float32 or float64, from a floating-point type that is no wider."""
    to, kind = cast.attributes.get("to"), types.get(cast.inputs[0]) if cast.inputs[0] is not None else None
    if to is None or to.is_ref() or not isinstance(kind, ir.TensorType):
        return False
    is_double = kind.dtype == ir.DataType.DOUBLE and ir.DataType(to.as_int()) == ir.DataType.DOUBLE
    return is_double or (ir.DataType(to.as_int()) in WIDE and kind.dtype in _NARROWER)


class Site:
    """A node as its rule sees it."""

    __slots__ = ("known", "node")

    def __init__(self, node: ir.Node, known: Known) -> None:
        self.node, self.known = node, known

    @property
    def bounds(self) -> list[Bound]:
        """The bounds of all inputs."""
        return [self.known.of(value) for value in self.node.inputs]

    def has(self, port: int) -> bool:
        """Return True if the input is present."""
        return self.input(port) is not None

    def input(self, port: int) -> ir.Value | None:
        """Return an input; None if it is absent."""
        return self.node.inputs[port] if port < len(self.node.inputs) else None

    def bound(self, port: int) -> Bound:
        """Return the bound of an input."""
        return self.known.of(self.input(port))

    def dims(self, port: int) -> Dims | None:
        """Return the sizes of an input."""
        return self.known.dims(self.input(port))

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return self.node.attributes.get_int(name, default)

    def number(self, name: str, default: float) -> float:
        """Return a float attribute."""
        return self.node.attributes.get_float(name, default)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        return self.node.attributes.get_string(name, default)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers; None if it is absent."""
        numbers = self.node.attributes.get_ints(name)
        return None if numbers is None else tuple(numbers)

    def numbers(self, port: int) -> tuple[float, ...] | None:
        """Return the numbers of a small stored input; None for any other input."""
        tensor = self.known.stored(self.input(port))
        if tensor is None or math.prod(dims(tensor)) > _READ or tensor.dtype == ir.DataType.STRING:
            return None
        return tuple(float(number) for number in numbers(tensor).reshape(-1))

    def count(self) -> int | None:
        """Return the number of elements that a reduction reduces to one; None if it is unknown."""
        shape, axes = self.dims(0), self.integers("axes")
        if axes is None and self.has(1):
            indices = self.numbers(1)
            if indices is None:
                return None
            axes = tuple(map(int, indices))
        if not axes and self.integer("noop_with_empty_axes", 0):
            return 1
        sizes = (
            [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)] if axes and shape else shape
        )
        static = [size for size in sizes or () if isinstance(size, int)]
        return math.prod(static) if sizes is not None and len(static) == len(sizes) else None

    def is_same(self, first: ir.Value | None, second: ir.Value | None) -> bool:
        """Whether both values are exact copies of one value, element for element."""
        types = self.known.types
        return (
            first is not None
            and second is not None
            and exact_origin(first, types) is exact_origin(second, types)
        )

    def producer(self, port: int, *operators: str) -> ir.Node | None:
        """Return the producer of an input behind exact copies, if it is one of these standard operators."""
        value = self.input(port)
        node = exact_origin(value, self.known.types).producer() if value is not None else None
        return node if node is not None and not node.domain and node.op_type in operators else None


Rule = Callable[[Site], Bound]
"""The transfer function of an operator: the bound of its first output, or UNKNOWN."""
