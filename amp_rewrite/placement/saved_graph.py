"""The optimised graph that onnxruntime saved -> its nodes, with the types of their floats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from amp_rewrite.model import loading, preserved_fields, proto_traversal
from amp_rewrite.model.traversal import every_node
from amp_rewrite.numerics import half
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name

COPIES = ("MemcpyFromHost", "MemcpyToHost")
HALVES = tuple(half.BY_NAME)
FULL = element_type_name(ir.DataType.FLOAT)
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Executed:
    """A node that onnxruntime executes; operators of other domains are written `com.microsoft:FusedMatMul`.

    `inputs` and `outputs` are their element types, `unknown` where they cannot be told.
    """

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def precision(self) -> str:
        """`float16` or `bfloat16` where an input or output is, else `float32`; else `other` or `unknown`."""
        types = (*self.inputs, *self.outputs)
        found = next((kind for kind in (*HALVES, FULL) if kind in types), None)
        return found or (UNKNOWN if UNKNOWN in self.outputs else "other")


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A graph that onnxruntime saved, and the types of its values: it saves few, so they are inferred again.

    `operator` says what a node is called: those that onnxruntime inserts pass for ONNX's in `model`.
    """

    model: ir.Model
    types: Types

    @property
    def nodes(self) -> Iterator[ir.Node]:
        """All nodes, those of subgraphs included."""
        return every_node(self.model.graph)

    def executed(self, node: ir.Node) -> Executed:
        """What is to be known of a node."""
        return Executed(
            operator(node),
            node.name or "",
            tuple(_type(value, self.types) for value in node.inputs if value is not None),
            tuple(_type(value, self.types) for value in node.outputs if value.name),
        )


def operator(node: ir.Node) -> str:
    """The operator that onnxruntime executes, with its domain where that is not ONNX's own."""
    return node.metadata_props.get(_OPERATOR) or schema.written(node.domain, node.op_type)


def own_name(name: str) -> str:
    """The name of a node without what onnxruntime appends when it moves the node past a Transpose."""
    return _MOVED.sub("", name)


_MOVED = re.compile(r"_token_\d+$")


def read(path: Path) -> SavedGraph:
    """A graph from the file that onnxruntime saved."""
    model = load(path)
    return SavedGraph(model, element_types.infer(model))


def load(path: Path) -> ir.Model:
    """A model for its nodes and the names of its values, whatever else is wrong with it; without its data.

    Raises ModelError for what is not a model.
    """
    proto = loading.load_graph(path)
    inside = tuple(proto_traversal.graphs(proto.graph))
    for node in (node for graph in inside for node in graph.node):
        _give_schema(node)
    preserved_fields.take_out(proto, inside)  # what onnx-ir cannot read
    return ir.from_proto(proto)


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


def _type(value: ir.Value, types: Types) -> str:
    found = types.get(value)
    while isinstance(found, (ir.SequenceType, ir.OptionalType)):
        found = found.elem_type
    return element_type_name(found.dtype) if found is not None else UNKNOWN
