"""How often the bodies of If, Loop and Scan run, and the shapes of values that enter and leave them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from amp_rewrite.flops import node_inference
from amp_rewrite.flops.node_inference import Array, KnownValue
from amp_rewrite.onnx_types import control_flow

BodyOutputs = Sequence[tuple[ir.Graph, onnx.TypeProto | None]]
"""For each body, the type of one of its outputs."""


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """A control-flow node with the inputs that decide what runs: None where they are unknown."""

    node: ir.Node
    condition: bool | None = None
    limit: int | None = None

    def trip_count(self, body: ir.Graph, values: Mapping[ir.Value, Array]) -> int | None:
        """How often a body runs in one run of the node; None where that depends on the data.

        None for both branches of an If whose condition is unknown.
        """
        if self.node.op_type == "If":
            return None if self.condition is None else int(self._is_taken(body))
        if self.node.op_type == "Loop":
            return self.limit if self._runs_to_the_limit(body, values) else None
        return self.limit

    def taken(self, inner: BodyOutputs) -> BodyOutputs:
        """The outputs of the branch that runs; of all branches where the condition is unknown."""
        if self.node.op_type != "If" or self.condition is None:
            return inner
        return [(body, kind) for body, kind in inner if self._is_taken(body)]

    def _is_taken(self, body: ir.Graph) -> bool:
        name = "then_branch" if self.condition else "else_branch"
        return self.node.attributes[name].as_graph() is body

    def _runs_to_the_limit(self, body: ir.Graph, values: Mapping[ir.Value, Array]) -> bool:
        """Whether a loop's condition never ends it: it is constantly true, or passed through unchanged."""
        has_condition = len(self.node.inputs) > 1 and self.node.inputs[1] is not None
        starts = self.condition or (self.condition is None and not has_condition)
        if not starts or not body.outputs:
            return False
        origin = _behind_identities(body.outputs[0])
        if len(body.inputs) > 1 and origin is body.inputs[1]:
            return True
        known = values.get(origin)
        return known is not None and bool(known.all())


def _behind_identities(value: ir.Value) -> ir.Value:
    """The value that a chain of Identity nodes passes through."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and not node.domain:
        if not node.inputs or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def control_flow_of(node: ir.Node, read: Callable[[ir.Value | None], KnownValue | None]) -> ControlFlow:
    """The condition and the trip limit of a control-flow node, from what is known of its inputs."""
    inputs = list(map(read, node.inputs))
    if node.op_type == "If":
        return ControlFlow(node, condition=_flag(inputs, 0))
    if node.op_type == "Loop":
        return ControlFlow(node, condition=_flag(inputs, 1), limit=_number(inputs, 0))
    return ControlFlow(node, limit=_scanned(node, inputs) if node.op_type == "Scan" else None)


def _flag(inputs: Sequence[KnownValue | None], port: int) -> bool | None:
    data = _data(inputs, port)
    return None if data is None else bool(data.all())


def _number(inputs: Sequence[KnownValue | None], port: int) -> int | None:
    data = _data(inputs, port)
    return None if data is None or data.size != 1 else max(int(data.reshape(())), 0)


def _data(inputs: Sequence[KnownValue | None], port: int) -> Array | None:
    known = inputs[port] if port < len(inputs) else None
    return None if known is None else known.data


def _scanned(node: ir.Node, inputs: Sequence[KnownValue | None]) -> int | None:
    """The length of the sequences that a Scan iterates over; in Scan 8 times the batch."""
    first = _first_scanned(node)
    held = inputs[first] if first < len(inputs) else None
    shape = node_inference.proto_shape(held.type) if held is not None else None
    axis = _axis(node, "scan_input_axes", 0)
    if _has_batch(node):
        return None if shape is None or len(shape) < 2 else shape[0] * shape[1]
    return None if shape is None or axis >= len(shape) else shape[axis]


def _first_scanned(node: ir.Node) -> int:
    """The index of the first scan input; the state inputs precede it."""
    return len(node.inputs) - node.attributes["num_scan_inputs"].as_int()


def _has_batch(node: ir.Node) -> bool:
    """Whether this is Scan 8: an input of sequence lengths comes first, and every value has a batch axis."""
    return len(node.inputs) != len(node.attributes["body"].as_graph().inputs)


def _axis(node: ir.Node, name: str, position: int) -> int:
    axes = node.attributes.get_ints(name, ())
    return axes[position] if position < len(axes) else 0


def inside(
    node: ir.Node, binding: control_flow.Binding, outer: onnx.TypeProto | None
) -> onnx.TypeProto | None:
    """The type of a value inside a body, from its type outside."""
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


def outside(
    node: ir.Node, binding: control_flow.Binding, inner: BodyOutputs, trip_counts: Mapping[ir.Graph, int]
) -> onnx.TypeProto | None:
    """The type of an output of a control-flow node, from its types in the bodies."""
    found = _larger([kind for _, kind in inner if kind is not None])
    if found is None or not binding.leaves:
        return found
    if binding.mapped:
        sequence = onnx.TypeProto()
        sequence.sequence_type.elem_type.CopyFrom(found)
        return sequence
    dims = node_inference.proto_dims(found)
    if node.op_type == "If" or binding.inputs or dims is None:
        return None if node.op_type == "Scan" and _has_batch(node) else found
    times = trip_counts.get(binding.leaves[0][0])
    position = binding.leaves[0][1] - (len(node.outputs) - _scans(node))
    axis = _axis(node, "scan_output_axes", position) if node.op_type == "Scan" else 0
    axis = axis % (len(dims) + 1)
    return node_inference.tensor_proto(_element(found), [*dims[:axis], times, *dims[axis:]])


def _scans(node: ir.Node) -> int:
    """How many outputs of a Scan are scan outputs, stacked along an axis."""
    body = node.attributes["body"].as_graph()
    scanned = node.attributes.get("num_scan_inputs")
    return len(body.outputs) - (len(body.inputs) - scanned.as_int()) if scanned is not None else 0


def _larger(kinds: Sequence[onnx.TypeProto]) -> onnx.TypeProto | None:
    """The type of the largest tensor: where branches differ, later nodes are counted for the larger one."""
    known = [(size, kind) for kind in kinds if (size := _elements(kind)) is not None]
    if known:
        return max(known, key=lambda pair: pair[0])[1]
    return kinds[0] if kinds else None


def _elements(kind: onnx.TypeProto) -> int | None:
    shape = node_inference.proto_shape(kind)
    return None if shape is None else math.prod(shape)


def _element(kind: onnx.TypeProto) -> ir.DataType:
    return ir.DataType(kind.tensor_type.elem_type)
