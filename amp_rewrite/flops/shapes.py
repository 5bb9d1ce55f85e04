"""The shape of every value of a model, with a size for every dimension that the model leaves open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from amp_rewrite.flops import bodies, contrib_shapes, one_node, protos
from amp_rewrite.flops.one_node import Array, Read
from amp_rewrite.flops.opened import Dims, Opened
from amp_rewrite.flops.protos import Shape
from amp_rewrite.model import constants
from amp_rewrite.onnx_types import control_flow, element_types

SMALL = 4096
"""Up to so many elements a value is computed where it can be: shapes, and what shapes are made from."""

FEW = 16
"""Up to so many floats are: the scales of a Resize, the ends of a Range."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes that are known, the small values that are, and how often each body runs, as far as known.

    `assumed` names the dimensions that were left open and count as 1: a symbol, or `input:axis`.
    """

    known: Mapping[ir.Value, Shape]
    values: Mapping[ir.Value, Array]
    trips: Mapping[ir.Graph, int]
    assumed: tuple[str, ...]

    def of(self, value: ir.Value | None) -> Shape | None:
        """The shape of a value; None where it is not known, and for no value."""
        return self.known.get(value) if value is not None else None


def infer(model: ir.Model, types: element_types.Types, dims: Dims | None = None) -> Shapes:
    """The shapes of the main graph's values and of those of the graphs below it.

    `dims` gives open dimensions of the inputs a size, by symbol or as `input:axis`; others count as 1.
    Raises OptionError when it names what is not open. A value behind a node that nothing is known of keeps
    the shape that the model declares, or has none.
    """
    opened = Opened(model.graph, dims or {})
    walk = _Walk(model, types, opened)
    walk.graph(model.graph)
    known = {
        value: shape for value, proto in walk.types.items() if (shape := protos.shape(proto)) is not None
    }
    return Shapes(known, walk.values, walk.trips, opened.assumed)


class _Walk:
    """Graphs in order; each node's outputs follow from its inputs."""

    def __init__(self, model: ir.Model, types: element_types.Types, opened: Opened) -> None:
        self.types: dict[ir.Value, onnx.TypeProto] = {}
        self.values: dict[ir.Value, Array] = {}
        self.trips: dict[ir.Graph, int] = {}
        self._imports = {"": 1, **model.graph.opset_imports}
        self._elements = types
        self._opened = opened
        self._overridable = model.ir_version >= constants.CONSTANT_INPUTS_BELOW
        for value in model.graph.inputs:
            dims, kind = opened.of_input(value), value.type
            if dims is not None and isinstance(kind, ir.TensorType):
                self.types[value] = protos.tensor(kind.dtype, dims)

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if value.const_value is not None:
                self._store(value, value.const_value)
        for value in graph.inputs:
            self._declare(value)
        for node in graph:
            self._node(node)

    def _store(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        self.types[value] = protos.tensor(tensor.dtype, tensor.shape.numpy())
        if not (self._overridable and value.is_graph_input()) and _is_small(tensor.dtype, tensor.size):
            self.values[value] = constants.numbers(tensor)

    def _declare(self, value: ir.Value) -> None:
        if value not in self.types:
            self._set(value, None)

    def _set(self, value: ir.Value, found: onnx.TypeProto | None) -> None:
        said = protos.declared(value, self._elements.get(value), self._opened.of_symbol)
        made = protos.refined(found, said)
        if made is not None:
            self.types[value] = made

    def _node(self, node: ir.Node) -> None:
        bindings = control_flow.bindings(node)
        if bindings is not None:
            self._control(node, bindings)
            return
        tensor = constants.constant(node)
        if tensor is not None:
            self._store(node.outputs[0], tensor)
            return
        reads = [self._read(value) for value in node.inputs]
        for value, found in zip(node.outputs, self._types(node, reads), strict=True):
            self._set(value, found)
        self._compute(node, reads)
        for body in control_flow.bodies(node):
            self.graph(body)

    def _read(self, value: ir.Value | None) -> Read | None:
        return None if value is None else Read(self.types.get(value), self.values.get(value))

    def _types(self, node: ir.Node, reads: Sequence[Read | None]) -> Sequence[onnx.TypeProto | None]:
        like = contrib_shapes.standard(node)
        if like:
            return one_node.types(node, reads, self._imports, like)
        found = one_node.types(node, reads, self._imports)
        if any(proto is not None for proto in found):
            return found
        shapes = [None if read is None else protos.shape(read.type) for read in reads]
        made = contrib_shapes.outputs(node, shapes)
        return [self._tensor(value, shape) for value, shape in zip(node.outputs, made, strict=True)]

    def _tensor(self, value: ir.Value, shape: Shape | None) -> onnx.TypeProto | None:
        kind = self._elements.get(value)
        return protos.tensor(kind.dtype, shape) if shape is not None and kind is not None else None

    def _compute(self, node: ir.Node, reads: Sequence[Read | None]) -> None:
        if _is(node, "Shape", "Size"):
            reads = [self._stand_in(reads[0])]
        if not self._computable(node, reads):
            return
        for value, made in zip(node.outputs, one_node.values(node, reads, self._imports), strict=True):
            kind = self._elements.get(value)
            if made is not None and kind is not None and _is_small(kind.dtype, made.size):
                self.values[value] = made
                self.types[value] = protos.tensor(kind.dtype, made.shape)

    def _stand_in(self, read: Read | None) -> Read | None:
        """A value of the same shape that takes no memory: all that Shape and Size look at."""
        shape = protos.shape(read.type) if read is not None else None
        if read is None or shape is None:
            return read
        try:
            return Read(read.type, np.broadcast_to(np.zeros((), np.int8), shape))
        except ValueError:  # more elements than NumPy can count
            return Read(read.type)

    def _computable(self, node: ir.Node, reads: Sequence[Read | None]) -> bool:
        """Whether a node makes small values of known ones, and the same ones in every run."""
        if node.domain or node.op_type in _CHANCE or control_flow.bodies(node):
            return False
        if any(read is not None and read.data is None for read in reads):
            return False
        shapes = [protos.shape(self.types.get(value)) for value in node.outputs if value.name]
        return _is(node, *_OPEN_ENDED) or all(s is not None and math.prod(s) <= SMALL for s in shapes)

    def _control(self, node: ir.Node, bindings: tuple[control_flow.Binding, ...]) -> None:
        flow = bodies.flow(node, self._read)
        for binding in bindings:
            self._enter(node, binding)
        for body in control_flow.bodies(node):
            self.graph(body)
        for body in control_flow.bodies(node):
            trips = flow.trips(body, self.values)
            if trips is not None:
                self.trips[body] = trips
        for binding in bindings:
            self._leave(node, binding, flow)

    def _enter(self, node: ir.Node, binding: control_flow.Binding) -> None:
        outer = node.inputs[binding.inputs[0]] if binding.inputs else None
        if outer is None:
            return
        found = bodies.inside(node, binding, self.types.get(outer))
        for body, i in binding.enters:
            if found is not None:
                self.types[body.inputs[i]] = found

    def _leave(self, node: ir.Node, binding: control_flow.Binding, flow: bodies.Flow) -> None:
        inner = [(body, self.types.get(body.outputs[i])) for body, i in binding.leaves]
        found = bodies.outside(node, binding, flow.taken(inner), self.trips)
        for i in binding.outputs:
            if i < len(node.outputs):
                self._set(node.outputs[i], found)


def _is_small(dtype: ir.DataType, count: int) -> bool:
    """Whether a shape may follow from so many values."""
    if dtype == ir.DataType.STRING:
        return False
    return count <= (FEW if dtype.is_floating_point() else SMALL)


def _is(node: ir.Node, *operators: str) -> bool:
    return not node.domain and node.op_type in operators


_OPEN_ENDED = ("NonZero", "Compress", "Unique")
"""Operators whose output is as large as what their input holds says, and never much larger than it."""

_CHANCE = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial Dropout".split()
)
"""Operators that may make other values in every run."""
