"""The shape of every value of a model, with a size for every dimension that the model leaves open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from amp_rewrite.flops import control_flow_shapes, node_inference
from amp_rewrite.flops.node_inference import Array, KnownValue, Shape
from amp_rewrite.model import constants
from amp_rewrite.onnx_types import control_flow, element_types
from amp_rewrite.policy.open_sizes import Dims, OpenDimensions

SMALL = 4096
"""Integer and boolean values of up to this many elements are computed: shapes may depend on them."""

FEW = 16
"""Float values of up to this many elements are: the scales of a Resize, the ends of a Range."""


@dataclass(frozen=True, slots=True)
class ValueShapes:
    """What is known of a model's values: shapes, the contents of small ones, and how often each body runs.

    `assumed` names the open dimensions that count as DEFAULT: a symbol, or `input:axis`.
    """

    known: Mapping[ir.Value, Shape]
    values: Mapping[ir.Value, Array]
    trip_counts: Mapping[ir.Graph, int]
    assumed: tuple[str, ...]

    def of(self, value: ir.Value | None) -> Shape | None:
        """The shape of a value; None where it is unknown, and for None."""
        return self.known.get(value) if value is not None else None


def infer(model: ir.Model, types: element_types.Types, dims: Dims | None = None) -> ValueShapes:
    """The shapes of all values of the main graph and its subgraphs.

    `dims` sets open dimensions of the inputs, by symbol or as `input:axis`; others count as 64. Raises
    OptionError when it names a dimension that is not open. An output of a node without shape inference keeps
    the shape that the model declares, if any.
    """
    opened = OpenDimensions(model.graph, dims or {})
    found = _ShapePropagation(model, types, opened)
    found.graph(model.graph)
    known = {
        value: shape
        for value, proto in found.types.items()
        if (shape := node_inference.proto_shape(proto)) is not None
    }
    return ValueShapes(known, found.values, found.trip_counts, opened.assumed)


class _ShapePropagation:
    """Infers the types and shapes of values, graph by graph in the order of the nodes."""

    def __init__(self, model: ir.Model, types: element_types.Types, opened: OpenDimensions) -> None:
        self.types: dict[ir.Value, onnx.TypeProto] = {}
        self.values: dict[ir.Value, Array] = {}
        self.trip_counts: dict[ir.Graph, int] = {}
        self._imports = {"": 1, **model.graph.opset_imports}
        self._elements = types
        self._opened = opened
        self._overridable = model.ir_version >= constants.CONSTANT_INPUTS_BELOW
        for value in model.graph.inputs:
            dims, kind = opened.of_input(value), value.type
            if dims is not None and isinstance(kind, ir.TensorType):
                self.types[value] = node_inference.tensor_proto(kind.dtype, dims)

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if value.const_value is not None:
                self._store(value, value.const_value)
        for value in graph.inputs:
            if value not in self.types:
                self._set(value, None)
        for node in graph:
            self._node(node)

    def _store(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        self.types[value] = node_inference.tensor_proto(tensor.dtype, tensor.shape.numpy())
        if not (self._overridable and value.is_graph_input()) and _is_small(tensor.dtype, tensor.size):
            self.values[value] = constants.numbers(tensor)

    def _set(self, value: ir.Value, found: onnx.TypeProto | None) -> None:
        declared = node_inference.declared_proto(value, self._elements.get(value), self._opened.of_symbol)
        refined = node_inference.refine_proto(found, declared)
        if refined is not None:
            self.types[value] = refined

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

    def _read(self, value: ir.Value | None) -> KnownValue | None:
        return None if value is None else KnownValue(self.types.get(value), self.values.get(value))

    def _types(self, node: ir.Node, reads: Sequence[KnownValue | None]) -> Sequence[onnx.TypeProto | None]:
        like = node_inference.standard(node)
        found = node_inference.types(node, reads, self._imports, like)
        if like or any(proto is not None for proto in found):
            return found
        shapes = [None if read is None else node_inference.proto_shape(read.type) for read in reads]
        inferred = node_inference.outputs(node, shapes)
        return [self._tensor(value, shape) for value, shape in zip(node.outputs, inferred, strict=True)]

    def _tensor(self, value: ir.Value, shape: Shape | None) -> onnx.TypeProto | None:
        kind = self._elements.get(value)
        return (
            node_inference.tensor_proto(kind.dtype, shape) if shape is not None and kind is not None else None
        )

    def _compute(self, node: ir.Node, reads: Sequence[KnownValue | None]) -> None:
        if _is(node, "Shape", "Size"):
            reads = [self._stand_in(reads[0])]
        if not self._computable(node, reads):
            return
        for value, array in zip(node.outputs, node_inference.values(node, reads, self._imports), strict=True):
            kind = self._elements.get(value)
            if array is not None and kind is not None and _is_small(kind.dtype, array.size):
                self.values[value] = array
                self.types[value] = node_inference.tensor_proto(kind.dtype, array.shape)

    def _stand_in(self, read: KnownValue | None) -> KnownValue | None:
        """An array of the same shape that takes no memory, for Shape and Size, which read no elements."""
        shape = node_inference.proto_shape(read.type) if read is not None else None
        if read is None or shape is None:
            return read
        try:
            return KnownValue(read.type, np.broadcast_to(np.zeros((), np.int8), shape))
        except ValueError:  # more elements than NumPy can count
            return KnownValue(read.type)

    def _computable(self, node: ir.Node, reads: Sequence[KnownValue | None]) -> bool:
        """Whether a node is deterministic, its inputs are known and its outputs are small."""
        if node.domain or node.op_type in _RANDOM or control_flow.bodies(node):
            return False
        if any(read is not None and read.data is None for read in reads):
            return False
        shapes = [node_inference.proto_shape(self.types.get(value)) for value in node.outputs if value.name]
        return _is(node, *_DATA_DEPENDENT) or all(s is not None and math.prod(s) <= SMALL for s in shapes)

    def _control(self, node: ir.Node, bindings: tuple[control_flow.Binding, ...]) -> None:
        flow = control_flow_shapes.control_flow_of(node, self._read)
        for binding in bindings:
            self._enter(node, binding)
        for body in control_flow.bodies(node):
            self.graph(body)
        for body in control_flow.bodies(node):
            count = flow.trip_count(body, self.values)
            if count is not None:
                self.trip_counts[body] = count
        for binding in bindings:
            self._leave(node, binding, flow)

    def _enter(self, node: ir.Node, binding: control_flow.Binding) -> None:
        outer = node.inputs[binding.inputs[0]] if binding.inputs else None
        if outer is None:
            return
        found = control_flow_shapes.inside(node, binding, self.types.get(outer))
        for body, i in binding.enters:
            if found is not None:
                self.types[body.inputs[i]] = found

    def _leave(
        self, node: ir.Node, binding: control_flow.Binding, flow: control_flow_shapes.ControlFlow
    ) -> None:
        inner = [(body, self.types.get(body.outputs[i])) for body, i in binding.leaves]
        found = control_flow_shapes.outside(node, binding, flow.taken(inner), self.trip_counts)
        for i in binding.outputs:
            if i < len(node.outputs):
                self._set(node.outputs[i], found)


def _is_small(dtype: ir.DataType, count: int) -> bool:
    """Whether a value with this many elements is small enough to compute."""
    if dtype == ir.DataType.STRING:
        return False
    return count <= (FEW if dtype.is_floating_point() else SMALL)


def _is(node: ir.Node, *operators: str) -> bool:
    return not node.domain and node.op_type in operators


_DATA_DEPENDENT = ("NonZero", "Compress", "Unique")
"""Operators whose output size depends on the contents of their input, and is never much larger than it."""

_RANDOM = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial Dropout".split()
)
"""Operators whose outputs may differ from run to run."""
