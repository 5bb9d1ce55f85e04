"""What a rule sees of a node: bounds and sizes of its inputs, its attributes, the sizes of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from amp_rewrite.bounds.bound import Bound, interval, summed, times
from amp_rewrite.bounds.known import Dim, Dims, Known, Matrix
from amp_rewrite.model.constants import dims, numbers
from amp_rewrite.model.patterns import source
from amp_rewrite.onnx_types.element_types import Types

# Which values hold the same numbers: what Identities pass on, and Casts that lose nothing.

_NARROWER = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


def exact_origin(value: ir.Value, types: Types) -> ir.Value:
    """The value of which this one is an exact copy."""

    def copies(node: ir.Node) -> bool:
        return node.op_type == "Identity" or (node.op_type == "Cast" and is_lossless(node, types))

    return source(value, copies)


def is_lossless(cast: ir.Node, types: Types) -> bool:
    """Whether a Cast goes to float32 or float64, from a type of floats that is no wider."""
    to, source = cast.attributes.get("to"), types.get(cast.inputs[0]) if cast.inputs[0] is not None else None
    if to is None or to.is_ref() or not isinstance(source, ir.TensorType):
        return False
    dtype, given = ir.DataType(to.as_int()), source.dtype
    wide = dtype == ir.DataType.DOUBLE and given == ir.DataType.DOUBLE
    return wide or (dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) and given in _NARROWER)


def are_same(a: ir.Value | None, b: ir.Value | None, types: Types) -> bool:
    """Whether both hold the same numbers in the same places."""
    return a is not None and b is not None and (a is b or exact_origin(a, types) is exact_origin(b, types))


def exact_producer(value: ir.Value | None, types: Types, *operators: str) -> ir.Node | None:
    """The node that makes the numbers of a value, if it is one of these operators of the default domain."""
    node = exact_origin(value, types).producer() if value is not None else None
    return node if node is not None and not node.domain and node.op_type in operators else None


_READ = 64
"""Numbers that a rule reads from a stored tensor: axes, shapes, bounds."""


class Site:
    """A node, as its rule sees it."""

    __slots__ = ("_inputs", "_known", "node")

    def __init__(self, node: ir.Node, known: Known) -> None:
        self.node, self._known, self._inputs = node, known, node.inputs

    @property
    def bounds(self) -> list[Bound]:
        """The bounds of all inputs; what no rule asks for, such as axes, is not measured."""
        return [self._known.of(value) for value in self._inputs]

    def at(self, node: ir.Node) -> Site:
        """Another node, as its rule sees it."""
        return Site(node, self._known)

    @property
    def types(self) -> Types:
        """The element types of the model's values."""
        return self._known.types

    def has(self, port: int) -> bool:
        """Whether the node has this input."""
        return port < len(self.node.inputs) and self.node.inputs[port] is not None

    def input(self, port: int) -> ir.Value | None:
        """An input; None where the node has none there."""
        return self._inputs[port] if port < len(self._inputs) else None

    def bound(self, port: int) -> Bound:
        """The bound of an input."""
        return self._known.of(self.input(port))

    def dims(self, port: int) -> Dims | None:
        """The sizes of an input."""
        return self._known.dims(self.input(port))

    def out(self, port: int = 0) -> Dims | None:
        """The sizes of an output."""
        return self._known.dims(self.node.outputs[port])

    def integer(self, name: str, default: int) -> int:
        """An attribute that is an integer."""
        return self.node.attributes.get_int(name, default)

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        return self.node.attributes.get_float(name, default)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of integers; None where it is not there."""
        found = self.node.attributes.get_ints(name)
        return None if found is None else tuple(found)

    def text(self, name: str, default: str) -> str:
        """An attribute that is a string."""
        return self.node.attributes.get_string(name, default)

    def stored(self, port: int) -> ir.TensorProtocol | None:
        """The tensor that the model stores for an input."""
        return self._known.stored(self.input(port))

    def numbers(self, port: int) -> tuple[float, ...] | None:
        """The few numbers that the model stores for an input; None for others, and for many."""
        tensor = self.stored(port)
        if tensor is None or math.prod(dims(tensor)) > _READ or tensor.dtype == ir.DataType.STRING:
            return None
        return tuple(float(number) for number in numbers(tensor).reshape(-1))

    def axes(self) -> tuple[int, ...] | None:
        """The `axes` of a reduction, Squeeze or Unsqueeze, by attribute or second input; None where open."""
        found = self.integers("axes")
        if found is None and self.has(1):
            stored = self.numbers(1)
            found = tuple(map(int, stored)) if stored is not None else None
        return found

    def matrix(self, port: int, rows: int, columns: int) -> Matrix | None:
        """The norms of a stored input as a matrix of that shape."""
        return self._known.matrix(self.input(port), rows, columns)

    def matrix_of(self, port: int) -> Matrix | None:
        """The norms of a stored matrix, also behind a Transpose of it."""
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
        """What the quotient of a written-out norm is bound by; None for any other node."""
        return self._known.quotients.get(self.node)

    def norm(self, port: int, axis: int) -> float:
        """A bound of the L2 norm of an input along its axis -`axis`."""
        value = self.input(port)
        bound, shape = self._known.of(value), self._known.dims(value)
        own = None if shape is None else (shape[-axis] if axis <= len(shape) else 1)
        known = bound.norms[axis - 1] if axis <= len(bound.norms) else math.inf
        if value is not None and not bound.norms:
            known = self._known.stored_norm(value, axis)
        return min(known, root(own, bound.most)) if isinstance(own, int) else known

    def spread(self, port: int, axis: int, size: Dim) -> float:
        """The same for the input as it is broadcast to a size along that axis; None: any."""
        shape = self.dims(port)
        own = None if shape is None else (shape[-axis] if axis <= len(shape) else 1)
        if own is not None and own in (size, *((own,) if isinstance(own, int) and own != 1 else ())):
            return self.norm(port, axis)
        return root(size, self.bound(port).most) if isinstance(size, int) else math.inf

    def sums(self, port: int) -> float:
        """A bound of the sums of rows of an input of numbers from 0 on, as it is broadcast to the output."""
        shape, out = self.dims(port), self.out()
        same = shape and out and shape[-1] is not None and shape[-1] == out[-1]
        return self.bound(port).sums if same else math.inf

    def rank(self, port: int) -> int:
        """How many axes an input has; 0 where that is not known."""
        shape = self.dims(port)
        return len(shape) if shape is not None else 0

    def norms(self, port: int) -> tuple[float, ...]:
        """The norms of an input along all its axes, or all that are known."""
        count = self.rank(port) or len(self.bound(port).norms)
        return tuple(self.norm(port, axis) for axis in range(1, count + 1))


def root(size: int, most: float) -> float:
    """The L2 norm of so many numbers of at most that magnitude."""
    return times(math.sqrt(size), most) * summed(1)


Rule = Callable[[Site], Bound]
"""What a node's first output is bound by; UNKNOWN where the rule does not tell."""

NOTHING = interval(0.0, 0.0)
