"""The optimised graph that onnxruntime saved -> its nodes, with the types of their floats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from amp_rewrite.model import loading, preserved_fields, proto_traversal
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name

COPIES = ("MemcpyFromHost", "MemcpyToHost")
HALVES = ("float16", "bfloat16")
FULL = "float32"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Executed:
    """A node that onnxruntime executes; operators of other domains are written `com.microsoft:FusedMatMul`.

    `reads` and `makes` are the element types of its inputs and outputs, `unknown` where they cannot be told.
    """

    operator: str
    name: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]

    @property
    def precision(self) -> str:
        """`float16` or `bfloat16` where an input or output is, else `float32`; else `other` or `unknown`."""
        types = (*self.reads, *self.makes)
        found = next((kind for kind in (*HALVES, FULL) if kind in types), None)
        return found or (UNKNOWN if UNKNOWN in self.makes else "other")


def read(path: Path) -> list[Executed]:
    """The nodes of a saved graph, those of its subgraphs included.

    onnxruntime saves few types of values, so they are inferred again.
    """
    proto = loading.load_graph(path)
    inside = tuple(proto_traversal.graphs(proto.graph))
    for node in (node for graph in inside for node in graph.node):
        _give_schema(node)
    preserved_fields.take_out(proto, inside)  # what onnx-ir cannot read
    model = ir.from_proto(proto)
    types = element_types.infer(model)
    return [_executed(node, types) for graph in graphs(model.graph) for node in graph]


def _give_schema(node: onnx.NodeProto) -> None:
    """Has a node that onnxruntime inserts, and for which it has no schema, pass for one of ONNX."""
    if node.op_type in _MOVERS or node.domain in _LAYOUTS:
        node.metadata_props.add(key=_OPERATOR, value=schema.written(node.domain, node.op_type))
        node.op_type = "Identity" if node.op_type in _MOVERS else node.op_type
        node.domain = ""


_OPERATOR = "amp_rewrite.executed_operator"
_MOVERS = (*COPIES, "ReorderInput", "ReorderOutput")
_LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""The domains of ONNX's operators in other layouts of memory."""


def _executed(node: ir.Node, types: Types) -> Executed:
    return Executed(
        node.metadata_props.get(_OPERATOR) or schema.written(node.domain, node.op_type),
        node.name or "",
        tuple(_type(value, types) for value in node.inputs if value is not None),
        tuple(_type(value, types) for value in node.outputs if value.name),
    )


def _type(value: ir.Value, types: Types) -> str:
    found = types.get(value)
    while isinstance(found, (ir.SequenceType, ir.OptionalType)):
        found = found.elem_type
    return element_type_name(found.dtype) if found is not None else UNKNOWN
