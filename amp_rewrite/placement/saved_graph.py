"""The optimised graph that onnxruntime saved -> its nodes, with the types of their floats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from amp_rewrite.model import loading, preserved_fields, proto_traversal
from amp_rewrite.model.traversal import every_node
from amp_rewrite.numerics import half
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name

HALVES = tuple(half.BY_NAME)
FULL = element_type_name(ir.DataType.FLOAT)
UNKNOWN = "unknown"
COPIES = ("MemcpyFromHost", "MemcpyToHost")
"""Operators that copy between devices."""


@dataclass(frozen=True, slots=True)
class Executed:
    """A node that onnxruntime executes; operators of other domains are written `com.microsoft:FusedMatMul`.

    `inputs` and `outputs` are their element types, `unknown` where they cannot be inferred.
    """

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def precision(self) -> str:
        """`float16` or `bfloat16` where an input or output is, else `float32`; else `other` or `unknown`."""
        types = (*self.inputs, *self.outputs)
        kind_match = next((kind for kind in (*HALVES, FULL) if kind in types), None)
        return kind_match or (UNKNOWN if UNKNOWN in self.outputs else "other")


def read(path: Path) -> tuple[Executed, ...]:
    """Return all nodes of the graph in a file that onnxruntime saved, those of subgraphs included.

    It saves the types of few values, so they are inferred again. Raises ModelError for an unreadable model.
    """
    model = load(path)
    types = element_types.infer(model)
    return tuple(_executed(node, types) for node in every_node(model.graph))


def load(path: Path) -> ir.Model:
    """Return a model for its nodes and value names, without its data; it need not be valid otherwise.

    Raises ModelError for an unreadable model.
    """
    proto = loading.load_graph(path)
    inside = tuple(proto_traversal.graphs(proto.graph))
    for node in (node for graph in inside for node in graph.node):
        _give_schema(node)
    preserved_fields.take_out(proto, inside)  # files that onnx-ir cannot read
    return ir.from_proto(proto)


def _executed(node: ir.Node, types: Types) -> Executed:
    return Executed(
        node.metadata_props.get(_OPERATOR) or schema.written(node.domain, node.op_type),
        node.name or "",
        tuple(_type(value, types) for value in node.inputs if value is not None),
        tuple(_type(value, types) for value in node.outputs if value.name),
    )


def _give_schema(node: onnx.NodeProto) -> None:
    """Replace the operator of an inserted node without a schema by its ONNX counterpart."""
    if node.op_type in _MOVERS or node.domain in _LAYOUTS:
        node.metadata_props.add(key=_OPERATOR, value=schema.written(node.domain, node.op_type))
        node.op_type = "Identity" if node.op_type in _MOVERS else node.op_type
        node.domain = ""


_OPERATOR = "amp_rewrite.executed_operator"
_MOVERS = (*COPIES, "ReorderInput", "ReorderOutput")
_LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""The domains of ONNX's operators in other layouts of memory."""


def _type(value: ir.Value, types: Types) -> str:
    value_type = types.get(value)
    while isinstance(value_type, (ir.SequenceType, ir.OptionalType)):
        value_type = value_type.elem_type
    return element_type_name(value_type.dtype) if value_type is not None else UNKNOWN
