"""The shape of every value of a model, with a size for every dimension that the model leaves open."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from amp_rewrite.model import constants, node_inference
from amp_rewrite.model.node_inference import Array, KnownValue, Shape
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.onnx_types import control_flow, element_types
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.open_sizes import Dims, OpenDimensions

SMALL = 4096
"""Maximum number of elements of integer and boolean values that are computed: shapes may depend on them."""

FEW = 16
"""The same for float values: the scales of a Resize, the ends of a Range."""


@dataclass(frozen=True, slots=True)
class ValueShapes:
    """The shapes of a model's values, the contents of small ones, and the number of runs of each body.

    `assumed` names the open dimensions that count as DEFAULT: a symbol, or `input:axis`.
    """

    known: Mapping[ir.Value, Shape]
    values: Mapping[ir.Value, Array]
    trip_counts: Mapping[ir.Graph, int]
    assumed: tuple[str, ...]

    def of(self, value: ir.Value | None) -> Shape | None:
        """Return the shape of a value; None where it is unknown, and for None."""
        return self.known.get(value) if value is not None else None


def infer(model: ir.Model, types: element_types.Types, dims: Dims | None = None) -> ValueShapes:
    """Return the shapes of all values of the main graph and its subgraphs.

    `dims` sets open dimensions of the inputs, by symbol or as `input:axis`; others count as 64. Raises
    OptionError when it names a dimension that is not open. An output of a node without shape inference keeps
    the shape that the model declares, if any.
    """
    dimensions = OpenDimensions(model.graph, dims or {})
    propagation = _ShapePropagation(model, types, dimensions)
    propagation.graph(model.graph)
    shapes = {
        value: shape
        for value, proto in propagation.types.items()
        if (shape := node_inference.proto_shape(proto)) is not None
    }
    return ValueShapes(shapes, propagation.values, propagation.trip_counts, dimensions.assumed)


class _ShapePropagation:
    """Propagation of types and shapes, graph by graph in the order of the nodes."""

    def __init__(self, model: ir.Model, types: element_types.Types, dimensions: OpenDimensions) -> None:
        self.types: dict[ir.Value, onnx.TypeProto] = {}
        self.values: dict[ir.Value, Array] = {}
        self.trip_counts: dict[ir.Graph, int] = {}
        self._imports = {"": 1, **model.graph.opset_imports}
        self._elements = types
        self._opened = dimensions
        self._overridable = model.ir_version >= constants.CONSTANT_INPUTS_BELOW
        for value in model.graph.inputs:
            dims, kind = dimensions.of_input(value), value.type
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

    def _set(self, value: ir.Value, proto: onnx.TypeProto | None) -> None:
        declared = node_inference.declared_proto(value, self._elements.get(value), self._opened.of_symbol)
        refined = node_inference.refine_proto(proto, declared)
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
        for value, proto in zip(node.outputs, self._types(node, reads), strict=True):
            self._set(value, proto)
        self._compute(node, reads)
        for body in control_flow.bodies(node):
            self.graph(body)

    def _read(self, value: ir.Value | None) -> KnownValue | None:
        return None if value is None else KnownValue(self.types.get(value), self.values.get(value))

    def _types(self, node: ir.Node, reads: Sequence[KnownValue | None]) -> Sequence[onnx.TypeProto | None]:
        like = node_inference.standard(node)
        protos = node_inference.types(node, reads, self._imports, like)
        if like or any(proto is not None for proto in protos):
            return protos
        shapes = [None if operand is None else node_inference.proto_shape(operand.type) for operand in reads]
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

    def _stand_in(self, value: KnownValue | None) -> KnownValue | None:
        """Return an array of the same shape that takes no memory, for Shape and Size."""
        shape = node_inference.proto_shape(value.type) if value is not None else None
        if value is None or shape is None:
            return value
        try:
            return KnownValue(value.type, np.broadcast_to(np.zeros((), np.int8), shape))
        except ValueError:  # more elements than NumPy can count
            return KnownValue(value.type)

    def _computable(self, node: ir.Node, reads: Sequence[KnownValue | None]) -> bool:
        """Return whether a node is deterministic, its inputs are known and its outputs are small."""
        if node.domain or record_of(node).traits & Trait.DRAWS or control_flow.bodies(node):
            return False
        if any(operand is not None and operand.data is None for operand in reads):
            return False
        shapes = [node_inference.proto_shape(self.types.get(value)) for value in node.outputs if value.name]
        counts = record_of(node).traits & Trait.COUNTS  # never much more than there is
        return bool(counts) or all(s is not None and math.prod(s) <= SMALL for s in shapes)

    def _control(self, node: ir.Node, bindings: tuple[control_flow.Binding, ...]) -> None:
        flow = _control_flow_of(node, self._read)
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
        kind = _inside(node, binding, self.types.get(outer))
        for body, i in binding.enters:
            if kind is not None:
                self.types[body.inputs[i]] = kind

    def _leave(self, node: ir.Node, binding: control_flow.Binding, flow: _ControlFlow) -> None:
        inner = [(body, self.types.get(body.outputs[i])) for body, i in binding.leaves]
        kind = _outside(node, binding, flow.taken(inner), self.trip_counts)
        for i in binding.outputs:
            if i < len(node.outputs):
                self._set(node.outputs[i], kind)


def _is_small(dtype: ir.DataType, count: int) -> bool:
    """Return whether a value with this many elements is small enough to compute."""
    if dtype == ir.DataType.STRING:
        return False
    return count <= (FEW if dtype.is_floating_point() else SMALL)


def _is(node: ir.Node, *operators: str) -> bool:
    return not node.domain and node.op_type in operators


# How often the bodies of If, Loop and Scan run, and the shapes of values that enter and leave them.

_BodyOutputs = Sequence[tuple[ir.Graph, onnx.TypeProto | None]]
"""For each body, the type of one of its outputs."""


@dataclass(frozen=True, slots=True)
class _ControlFlow:
    """A control-flow node with the inputs that determine its runs: None where they are unknown."""

    node: ir.Node
    condition: bool | None = None
    limit: int | None = None

    def trip_count(self, body: ir.Graph, values: Mapping[ir.Value, Array]) -> int | None:
        """Return the number of runs of a body in one run of the node; None where that depends on the data, as
        for both branches of an If whose condition is unknown.
        """
        if self.node.op_type == "If":
            return None if self.condition is None else int(self._is_taken(body))
        if self.node.op_type == "Loop":
            return self.limit if self._runs_to_the_limit(body, values) else None
        return self.limit

    def taken(self, inner: _BodyOutputs) -> _BodyOutputs:
        """Return the outputs of the branch that runs; of all branches where the condition is unknown."""
        if self.node.op_type != "If" or self.condition is None:
            return inner
        return [(body, kind) for body, kind in inner if self._is_taken(body)]

    def _is_taken(self, body: ir.Graph) -> bool:
        name = "then_branch" if self.condition else "else_branch"
        return self.node.attributes[name].as_graph() is body

    def _runs_to_the_limit(self, body: ir.Graph, values: Mapping[ir.Value, Array]) -> bool:
        """Return whether a loop's condition never ends it: it is always true, or passed through unchanged."""
        has_condition = len(self.node.inputs) > 1 and self.node.inputs[1] is not None
        starts = self.condition or (self.condition is None and not has_condition)
        if not starts or not body.outputs:
            return False
        origin = _behind_identities(body.outputs[0])
        if len(body.inputs) > 1 and origin is body.inputs[1]:
            return True
        condition = values.get(origin)
        return condition is not None and bool(condition.all())


def _behind_identities(value: ir.Value) -> ir.Value:
    """Return the value that a chain of Identity nodes passes through."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and not node.domain:
        if not node.inputs or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def _control_flow_of(node: ir.Node, lookup: Callable[[ir.Value | None], KnownValue | None]) -> _ControlFlow:
    """Return the condition and the trip limit of a control-flow node, from the known values of its inputs."""
    inputs = list(map(lookup, node.inputs))
    if node.op_type == "If":
        return _ControlFlow(node, condition=_flag(inputs, 0))
    if node.op_type == "Loop":
        return _ControlFlow(node, condition=_flag(inputs, 1), limit=_number(inputs, 0))
    return _ControlFlow(node, limit=_scanned(node, inputs) if node.op_type == "Scan" else None)


def _flag(inputs: Sequence[KnownValue | None], port: int) -> bool | None:
    data = _data(inputs, port)
    return None if data is None else bool(data.all())


def _number(inputs: Sequence[KnownValue | None], port: int) -> int | None:
    data = _data(inputs, port)
    return None if data is None or data.size != 1 else max(int(data.reshape(())), 0)


def _data(inputs: Sequence[KnownValue | None], port: int) -> Array | None:
    value = inputs[port] if port < len(inputs) else None
    return None if value is None else value.data


def _scanned(node: ir.Node, inputs: Sequence[KnownValue | None]) -> int | None:
    """Return the length of the sequences that a Scan iterates over; in Scan 8 times the batch."""
    first = _first_scanned(node)
    operand = inputs[first] if first < len(inputs) else None
    shape = node_inference.proto_shape(operand.type) if operand is not None else None
    axis = _axis(node, "scan_input_axes", 0)
    if _has_batch(node):
        return None if shape is None or len(shape) < 2 else shape[0] * shape[1]
    return None if shape is None or axis >= len(shape) else shape[axis]


def _first_scanned(node: ir.Node) -> int:
    """Return the index of the first scan input; the state inputs precede it."""
    return len(node.inputs) - node.attributes["num_scan_inputs"].as_int()


def _has_batch(node: ir.Node) -> bool:
    """Return whether this is Scan 8: sequence lengths come first, and every value has a batch axis."""
    return len(node.inputs) != len(node.attributes["body"].as_graph().inputs)


def _axis(node: ir.Node, name: str, position: int) -> int:
    axes = node.attributes.get_ints(name, ())
    return axes[position] if position < len(axes) else 0


def _inside(
    node: ir.Node, binding: control_flow.Binding, outer: onnx.TypeProto | None
) -> onnx.TypeProto | None:
    """Return the type of a value inside a body, from its type outside."""
    if outer is None:
        return None
    if binding.mapped:
        return outer.sequence_type.elem_type if outer.HasField("sequence_type") else outer
    if node.op_type != "Scan":
        return outer
    dims = node_inference.proto_dims(outer)
    if dims is None or not dims:
        return outer
    batch = 1 if _has_batch(node) else 0
    axes = (
        list(range(batch)) if binding.outputs else [*range(batch), _axis_of(node, binding, len(dims), batch)]
    )
    return node_inference.tensor_proto(_element(outer), [d for i, d in enumerate(dims) if i not in axes])


def _axis_of(node: ir.Node, binding: control_flow.Binding, rank: int, batch: int) -> int:
    if batch:
        return 1
    return _axis(node, "scan_input_axes", binding.inputs[0] - _first_scanned(node)) % rank


def _outside(
    node: ir.Node, binding: control_flow.Binding, inner: _BodyOutputs, trip_counts: Mapping[ir.Graph, int]
) -> onnx.TypeProto | None:
    """Return the type of an output of a control-flow node, from its types in the bodies."""
    body_type = _larger([kind for _, kind in inner if kind is not None])
    if body_type is None or not binding.leaves:
        return body_type
    if binding.mapped:
        sequence = onnx.TypeProto()
        sequence.sequence_type.elem_type.CopyFrom(body_type)
        return sequence
    dims = node_inference.proto_dims(body_type)
    if node.op_type == "If" or binding.inputs or dims is None:
        return None if node.op_type == "Scan" and _has_batch(node) else body_type
    times = trip_counts.get(binding.leaves[0][0])
    position = binding.leaves[0][1] - (len(node.outputs) - _scans(node))
    axis = _axis(node, "scan_output_axes", position) if node.op_type == "Scan" else 0
    axis = axis % (len(dims) + 1)
    return node_inference.tensor_proto(_element(body_type), [*dims[:axis], times, *dims[axis:]])


def _scans(node: ir.Node) -> int:
    """Return the number of scan outputs of a Scan, stacked along an axis."""
    body = node.attributes["body"].as_graph()
    scanned = node.attributes.get("num_scan_inputs")
    return len(body.outputs) - (len(body.inputs) - scanned.as_int()) if scanned is not None else 0


def _larger(kinds: Sequence[onnx.TypeProto]) -> onnx.TypeProto | None:
    """Return the type of the largest tensor; it stands for all branches in later nodes."""
    sizes = [(size, kind) for kind in kinds if (size := _elements(kind)) is not None]
    if sizes:
        return max(sizes, key=lambda pair: pair[0])[1]
    return kinds[0] if kinds else None


def _elements(kind: onnx.TypeProto) -> int | None:
    shape = node_inference.proto_shape(kind)
    return None if shape is None else math.prod(shape)


def _element(kind: onnx.TypeProto) -> ir.DataType:
    return ir.DataType(kind.tensor_type.elem_type)
