"""A rule's view of a node: bounds and sizes of its inputs, its attributes, the sizes of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from amp_rewrite.bounds.bound import Bound, interval, summed, times
from amp_rewrite.bounds.known import Dim, Dims, Known, Matrix
from amp_rewrite.model.constants import dims, numbers
from amp_rewrite.model.patterns import source
from amp_rewrite.onnx_types.element_types import Types

# Values with the same numbers: copies by Identity, and by Casts that are exact.

_NARROWER = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


def exact_origin(value: ir.Value, types: Types) -> ir.Value:
    """Return the value of which this one is an exact copy."""

    def copies(node: ir.Node) -> bool:
        return node.op_type == "Identity" or (node.op_type == "Cast" and is_lossless(node, types))

    return source(value, copies)


def is_lossless(cast: ir.Node, types: Types) -> bool:
    """Whether a Cast is to float32 or float64, from a floating-point type that is no wider."""
    to, source = cast.attributes.get("to"), types.get(cast.inputs[0]) if cast.inputs[0] is not None else None
    if to is None or to.is_ref() or not isinstance(source, ir.TensorType):
        return False
    dtype, source_dtype = ir.DataType(to.as_int()), source.dtype
    wide = dtype == ir.DataType.DOUBLE and source_dtype == ir.DataType.DOUBLE
    return wide or (dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) and source_dtype in _NARROWER)


def are_same(a: ir.Value | None, b: ir.Value | None, types: Types) -> bool:
    """Whether both values are copies of one value, element for element."""
    return a is not None and b is not None and (a is b or exact_origin(a, types) is exact_origin(b, types))


def exact_producer(value: ir.Value | None, types: Types, *operators: str) -> ir.Node | None:
    """Return the producer of a value behind exact copies, if it is one of these operators of the default
    domain.
    """
    node = exact_origin(value, types).producer() if value is not None else None
    return node if node is not None and not node.domain and node.op_type in operators else None


_READ = 64
"""The most numbers that a rule reads from a stored tensor: axes, shapes, bounds."""


class Site:
    """A node as its rule sees it: with the bounds, sizes and constants of its inputs."""

    __slots__ = ("_inputs", "_known", "node")

    def __init__(self, node: ir.Node, environment: Known) -> None:
        self.node, self._known, self._inputs = node, environment, node.inputs

    @property
    def bounds(self) -> list[Bound]:
        """The bounds of all inputs; stored inputs that no rule reads, such as axes, are not measured."""
        return [self._known.of(value) for value in self._inputs]

    def at(self, node: ir.Node) -> Site:
        """Return the site of another node."""
        return Site(node, self._known)

    @property
    def types(self) -> Types:
        """The element types of the model's values."""
        return self._known.types

    def has(self, port: int) -> bool:
        """Return True if the input is present."""
        return port < len(self.node.inputs) and self.node.inputs[port] is not None

    def input(self, port: int) -> ir.Value | None:
        """Return an input; None if it is absent."""
        return self._inputs[port] if port < len(self._inputs) else None

    def bound(self, port: int) -> Bound:
        """Return the bound of an input."""
        return self._known.of(self.input(port))

    def dims(self, port: int) -> Dims | None:
        """Return the sizes of an input."""
        return self._known.dims(self.input(port))

    def out(self, port: int = 0) -> Dims | None:
        """Return the sizes of an output."""
        return self._known.dims(self.node.outputs[port])

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return self.node.attributes.get_int(name, default)

    def number(self, name: str, default: float) -> float:
        """Return a float attribute."""
        return self.node.attributes.get_float(name, default)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers; None if it is absent."""
        numbers = self.node.attributes.get_ints(name)
        return None if numbers is None else tuple(numbers)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        return self.node.attributes.get_string(name, default)

    def stored(self, port: int) -> ir.TensorProtocol | None:
        """Return the stored tensor of an input."""
        return self._known.stored(self.input(port))

    def numbers(self, port: int) -> tuple[float, ...] | None:
        """Return the numbers of a small stored input; None for any other input."""
        tensor = self.stored(port)
        if tensor is None or math.prod(dims(tensor)) > _READ or tensor.dtype == ir.DataType.STRING:
            return None
        return tuple(float(number) for number in numbers(tensor).reshape(-1))

    def axes(self) -> tuple[int, ...] | None:
        """Return the `axes` of a reduction, Squeeze or Unsqueeze, an attribute or input; None if unknown."""
        axes = self.integers("axes")
        if axes is None and self.has(1):
            indices = self.numbers(1)
            axes = tuple(map(int, indices)) if indices is not None else None
        return axes

    def matrix(self, port: int, rows: int, columns: int) -> Matrix | None:
        """Return the norms of a stored input as a matrix of that shape."""
        return self._known.matrix(self.input(port), rows, columns)

    def matrix_of(self, port: int) -> Matrix | None:
        """Return the norms of a stored matrix, also behind a Transpose of it."""
        value = self.input(port)
        tensor = self.stored(port)
        if tensor is not None:
            shape = dims(tensor)
            flat = [size for size in shape[:-2] if size != 1]
            return None if len(shape) < 2 or flat else self._known.matrix(value, shape[-2], shape[-1])
        node = value.producer() if value is not None else None
        if node is None or node.domain or node.op_type not in ("Transpose", "Identity"):
            return None
        source = self.at(node).matrix_of(0)
        if source is None or node.op_type == "Identity":
            return source
        order = self.at(node).integers("perm")
        swaps = order == (1, 0) if order is not None else self.at(node).rank(0) == 2
        return source.transposed if swaps else None

    def normalised(self) -> Bound | None:
        """Return the bound of the quotient of a written-out norm; None for any other node."""
        return self._known.quotients.get(self.node)

    def norm(self, port: int, axis: int) -> float:
        """Return a bound of the L2 norm of an input along its axis -`axis`."""
        value = self.input(port)
        bound, shape = self._known.of(value), self._known.dims(value)
        own = None if shape is None else (shape[-axis] if axis <= len(shape) else 1)
        limit = bound.norms[axis - 1] if axis <= len(bound.norms) else math.inf
        if value is not None and not bound.norms:
            limit = self._known.stored_norm(value, axis)
        return min(limit, root(own, bound.most)) if isinstance(own, int) else limit

    def spread(self, port: int, axis: int, size: Dim) -> float:
        """Return the same bound for the input broadcast to a size along that axis, if known."""
        shape = self.dims(port)
        own = None if shape is None else (shape[-axis] if axis <= len(shape) else 1)
        if own is not None and own in (size, *((own,) if isinstance(own, int) and own != 1 else ())):
            return self.norm(port, axis)
        return root(size, self.bound(port).most) if isinstance(size, int) else math.inf

    def sums(self, port: int) -> float:
        """Return a bound of the row sums of a non-negative input, broadcast to the output."""
        shape, out = self.dims(port), self.out()
        same = shape and out and shape[-1] is not None and shape[-1] == out[-1]
        return self.bound(port).sums if same else math.inf

    def rank(self, port: int) -> int:
        """Return the rank of an input; 0 if it is unknown."""
        shape = self.dims(port)
        return len(shape) if shape is not None else 0

    def norms(self, port: int) -> tuple[float, ...]:
        """Return the norms of an input along all its axes, or all known ones."""
        count = self.rank(port) or len(self.bound(port).norms)
        return tuple(self.norm(port, axis) for axis in range(1, count + 1))


def root(size: int, most: float) -> float:
    """Return the largest L2 norm of `size` numbers of at most that magnitude."""
    return times(math.sqrt(size), most) * summed(1)


Rule = Callable[[Site], Bound]
"""The transfer function of an operator: the bound of its first output, or UNKNOWN."""

NOTHING = interval(0.0, 0.0)
