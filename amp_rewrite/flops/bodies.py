"""How often the bodies of If, Loop and Scan run, and how shapes change where values enter and leave them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from amp_rewrite.flops import protos
from amp_rewrite.flops.one_node import Array, Read
from amp_rewrite.onnx_types import control_flow

Leaving = Sequence[tuple[ir.Graph, onnx.TypeProto | None]]
"""A body, and the type of what leaves it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What is known of a control-flow node before it runs."""

    node: ir.Node
    condition: bool | None = None
    limit: int | None = None

    def trips(self, body: ir.Graph, values: Mapping[ir.Value, Array]) -> int | None:
        """How often a body runs in one run of the node; None where that depends on the data.

        A branch of an If whose condition is not known has no number: one of the two runs.
        """
        if self.node.op_type == "If":
            return None if self.condition is None else int(self._is_taken(body))
        if self.node.op_type == "Loop":
            return self.limit if self._runs_to_the_end(body, values) else None
        return self.limit

    def taken(self, inner: Leaving) -> Leaving:
        """Of what leaves the bodies, what arrives: all of it where the condition is not known."""
        if self.node.op_type != "If" or self.condition is None:
            return inner
        return [(body, kind) for body, kind in inner if self._is_taken(body)]

    def _is_taken(self, body: ir.Graph) -> bool:
        name = "then_branch" if self.condition else "else_branch"
        return self.node.attributes[name].as_graph() is body

    def _runs_to_the_end(self, body: ir.Graph, values: Mapping[ir.Value, Array]) -> bool:
        """Whether a loop's own condition never ends it: it is true, or handed on as it came."""
        starts = self.condition is not False and (self.condition or self._has_no_condition())
        going_on = body.outputs[0] if body.outputs else None
        if not starts or going_on is None:
            return False
        origin = _behind_identities(going_on)
        if len(body.inputs) > 1 and origin is body.inputs[1]:
            return True
        known = values.get(origin)
        return known is not None and bool(known.all())

    def _has_no_condition(self) -> bool:
        return len(self.node.inputs) < 2 or self.node.inputs[1] is None


def _behind_identities(value: ir.Value) -> ir.Value:
    """The value that Identity nodes only rename."""
    while (maker := value.producer()) is not None and maker.op_type == "Identity" and not maker.domain:
        source = maker.inputs[0] if maker.inputs else None
        if source is None:
            break
        value = source
    return value


def flow(node: ir.Node, read: Callable[[ir.Value | None], Read | None]) -> Flow:
    """What is known of a control-flow node, from what is known of the values that it reads."""
    inputs = list(map(read, node.inputs))
    if node.op_type == "If":
        return Flow(node, condition=_flag(inputs, 0))
    if node.op_type == "Loop":
        return Flow(node, condition=_flag(inputs, 1), limit=_number(inputs, 0))
    return Flow(node, limit=_scanned(node, inputs) if node.op_type == "Scan" else None)


def _flag(inputs: Sequence[Read | None], port: int) -> bool | None:
    held = inputs[port] if port < len(inputs) else None
    return None if held is None or held.data is None else bool(held.data.all())


def _number(inputs: Sequence[Read | None], port: int) -> int | None:
    held = inputs[port] if port < len(inputs) else None
    if held is None or held.data is None or held.data.size != 1:
        return None
    return max(int(held.data.reshape(())), 0)


def _scanned(node: ir.Node, inputs: Sequence[Read | None]) -> int | None:
    """The length of what a Scan goes through; in Scan 8, with a batch in front, that of each of the batch."""
    first = _first_scanned(node)
    held = inputs[first] if first < len(inputs) else None
    shape = protos.shape(held.type) if held is not None else None
    axis = _axis(node, "scan_input_axes", 0)
    if _has_batch(node):
        return None if shape is None or len(shape) < 2 else shape[0] * shape[1]
    return None if shape is None or axis >= len(shape) else shape[axis]


def _first_scanned(node: ir.Node) -> int:
    """The first of the inputs that a Scan goes through; state stands before them."""
    return len(node.inputs) - node.attributes["num_scan_inputs"].as_int()


def _has_batch(node: ir.Node) -> bool:
    """Scan 8 has sequence lengths in front, and a batch in everything."""
    return len(node.inputs) != len(node.attributes["body"].as_graph().inputs)


def _axis(node: ir.Node, name: str, position: int) -> int:
    held = node.attributes.get(name)
    axes = held.as_ints() if held is not None else ()
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
    dims = protos.dims(outer)
    if dims is None or not dims:
        return outer
    batch = 1 if _has_batch(node) else 0
    axes = (
        list(range(batch)) if binding.outputs else [*range(batch), _axis_of(node, binding, len(dims), batch)]
    )
    return protos.tensor(_element(outer), [d for i, d in enumerate(dims) if i not in axes])


def _axis_of(node: ir.Node, binding: control_flow.Binding, rank: int, batch: int) -> int:
    if batch:
        return 1
    return _axis(node, "scan_input_axes", binding.inputs[0] - _first_scanned(node)) % rank


def outside(
    node: ir.Node, binding: control_flow.Binding, inner: Leaving, trips: Mapping[ir.Graph, int]
) -> onnx.TypeProto | None:
    """The type of a value behind a control-flow node, from its types in the bodies."""
    found = _larger([kind for _, kind in inner if kind is not None])
    if found is None or not binding.leaves:
        return found
    if binding.mapped:
        made = onnx.TypeProto()
        made.sequence_type.elem_type.CopyFrom(found)
        return made
    dims = protos.dims(found)
    if node.op_type == "If" or binding.inputs or dims is None:
        return None if node.op_type == "Scan" and _has_batch(node) else found
    times = trips.get(binding.leaves[0][0])
    position = binding.leaves[0][1] - (len(node.outputs) - _scans(node))
    axis = _axis(node, "scan_output_axes", position) if node.op_type == "Scan" else 0
    axis = axis % (len(dims) + 1)
    return protos.tensor(_element(found), [*dims[:axis], times, *dims[axis:]])


def _scans(node: ir.Node) -> int:
    """How many outputs of a Scan are stacked up."""
    body = node.attributes["body"].as_graph()
    scanned = node.attributes.get("num_scan_inputs")
    return len(body.outputs) - (len(body.inputs) - scanned.as_int()) if scanned is not None else 0


def _larger(kinds: Sequence[onnx.TypeProto]) -> onnx.TypeProto | None:
    """The type of the largest tensor; where branches differ, what follows is counted for the larger."""
    known = [(size, kind) for kind in kinds if (size := _elements(kind)) is not None]
    if known:
        return max(known, key=lambda pair: pair[0])[1]
    return kinds[0] if kinds else None


def _elements(kind: onnx.TypeProto) -> int | None:
    shape = protos.shape(kind)
    return None if shape is None else math.prod(shape)


def _element(kind: onnx.TypeProto) -> ir.DataType:
    return ir.DataType(kind.tensor_type.elem_type)
