"""The float values of a model that vary, and which of them a later value tells of."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from amp_rewrite.model import proto_traversal, traversal
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types.element_types import Types

FloatTypes = Sequence[Mapping[str, int]]
"""The element types of the float values of each graph, by name, in the order of `traversal.graphs`."""


def float_types(model: ir.Model, types: Types) -> FloatTypes:
    """The float32 and half values of a model that vary: no initializers, and no Constants."""
    return [
        {value.name or "": int(dtype) for value in _varying(graph) if (dtype := _float(types.get(value)))}
        for graph in traversal.graphs(model.graph)
    ]


def _varying(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (value for value in graph.inputs if not value.is_initializer())
    for node in graph:
        if node.op_type != "Constant":
            yield from (value for value in node.outputs if value.name)


def _float(kind: ir.TypeProtocol | None) -> ir.DataType | None:
    """The element type of a tensor of floats that half can replace, or replaced."""
    if isinstance(kind, ir.TensorType) and kind.dtype in (ir.DataType.FLOAT, *HALF_TYPES):
        return kind.dtype
    return None


def folded(model: onnx.ModelProto) -> frozenset[str]:
    """The values of the main graph that no input of a run can change, such as weights that nodes compute.

    An optimised session computes them, and what they are reduced to, once, but for random numbers.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    can_be_given = model.ir_version >= _SINCE_GIVEN
    varying = {entry.name for entry in model.graph.input if can_be_given or entry.name not in stored}
    found = set[str]()
    for node in model.graph.node:
        computed = node.domain or any(proto_traversal.bodies(node)) or varying.intersection(node.input)
        (varying if computed else found).update(node.output)
    return frozenset(found)


_SINCE_GIVEN = 4
"""The IR version from which on a run may be given what a model stores for an input."""

SAME_ELEMENTS = frozenset("Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
"""Operators whose output has the elements of their first input: they are reduced once."""

_PASS_NAN_ON = frozenset(
    "Abs Add BatchNormalization Concat Conv Div Expand Gemm GlobalAveragePool InstanceNormalization "
    "LayerNormalization MatMul Mul Neg ReduceMean ReduceSum Sqrt Sub Tile".split()
)
"""Operators that read each element of their inputs, and whose output has a NaN if one of these is."""


def passing_nan_on(graph: onnx.GraphProto, types: Container[str]) -> frozenset[str]:
    """The values of a graph that have a NaN only if a later value, one of those with `types`, has one."""
    passing = set[str]()
    for node in reversed(graph.node):
        moves = node.op_type in SAME_ELEMENTS and node.output[0] in passing
        computes = node.op_type in _PASS_NAN_ON and not _skips(node) and node.output[0] in types
        if node.domain == "" and (moves or computes):
            passing.update(node.input)
    return frozenset(passing)


def _skips(node: onnx.NodeProto) -> bool:
    """Whether a Conv may skip elements: its strides are not all 1."""
    return any(set(attribute.ints) - {1} for attribute in node.attribute if attribute.name == "strides")
