"""The optimised graph that onnxruntime saved -> its nodes, with the types of their floats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from amp_rewrite.model import loading, preserved_fields, proto_traversal
from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.numerics import half
from amp_rewrite.onnx_facts.operators import REARRANGES
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name

COPIES = ("MemcpyFromHost", "MemcpyToHost")
HALVES = tuple(half.BY_NAME)
FULL = element_type_name(ir.DataType.FLOAT)
UNKNOWN = "unknown"


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


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A graph that onnxruntime saved, and the types of its values: it saves few, so they are inferred again.

    `operator` gives the actual operator of a node: in `model`, nodes that onnxruntime inserts have ONNX's.
    """

    model: ir.Model
    types: Types

    @property
    def nodes(self) -> Iterator[ir.Node]:
        """All nodes, those of subgraphs included."""
        return every_node(self.model.graph)

    def executed(self, node: ir.Node) -> Executed:
        """Return the facts of a node."""
        return Executed(
            operator(node),
            node.name or "",
            tuple(_type(value, self.types) for value in node.inputs if value is not None),
            tuple(_type(value, self.types) for value in node.outputs if value.name),
        )


def operator(node: ir.Node) -> str:
    """Return the operator that onnxruntime executes, with its domain where that is not ONNX's own."""
    return node.metadata_props.get(_OPERATOR) or schema.written(node.domain, node.op_type)


def own_name(name: str) -> str:
    """Return a node's name without the suffix that onnxruntime appends when moving it past a Transpose."""
    return _MOVED.sub("", name)


_MOVED = re.compile(r"_token_\d+$")


def read(path: Path) -> SavedGraph:
    """Return a graph from the file that onnxruntime saved."""
    model = load(path)
    return SavedGraph(model, element_types.infer(model))


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


# The nodes that onnxruntime executes -> their origins in the model.


def find_origins(executed: SavedGraph, model: ir.Model) -> dict[ir.Node, tuple[ir.Node, ...]]:
    """Return the nodes of a model that each executed node stands for, the producer of its output first.

    onnxruntime keeps the name of a fused node's output: upstream nodes whose outputs are gone were fused
    into it. A node that it inserts stands for none, and a node that it folded, merged with an equal one or
    moved beyond recognition is in none. Constants are left out.
    """
    nodes = [node for node in every_node(model.graph) if node.op_type != "Constant"]
    producers = {value.name: node for node in nodes for value in node.outputs}
    producers.update(_renamed(executed, producers))
    nodes_by_name = {node.name: node for node in nodes if node.name}
    search = _Search(producers, frozenset(_present(executed.model)))
    return {node: search.of(node) or _same(node, nodes_by_name) for node in executed.nodes}


def is_fused(node: ir.Node, origins: Sequence[ir.Node]) -> bool:
    """Return whether an executed node has another operator than its first origin in the model."""
    return bool(origins) and operator(node) != operator(origins[0])


_INSERTED = REARRANGES | {"ReorderOutput", *COPIES}
"""Operators that onnxruntime inserts behind a node; their output takes over the name of the value."""

_Made = dict[str | None, ir.Node]


def _renamed(executed: SavedGraph, producers: _Made) -> _Made:
    """Return the model's producers of values that onnxruntime renamed: the inputs of movers that it inserted,
    and values in another precision.
    """
    aliases: _Made = {}
    for node in reversed([*executed.nodes]):
        output = node.outputs[0].name if node.outputs else None
        origin = aliases.get(output) or producers.get(output)
        if origin is None and operator(node) != "Cast" and _uncast(output) in producers:
            aliases[output] = producers[_uncast(output)]
        elif origin is not None and _is_mover(node) and operator(origin) != operator(node):
            value = node.inputs[0]
            if value is not None and value.producer() is not None and value.name not in producers:
                aliases[value.name], aliases[output] = origin, node
    return aliases


def _is_mover(node: ir.Node) -> bool:
    return operator(node).rpartition(":")[2] in _INSERTED and bool(node.inputs)


class _Search:
    def __init__(self, producers: Mapping[str | None, ir.Node], present: Set[str]) -> None:
        self._made = producers
        self._present = present
        self._taken: set[ir.Node] = set()

    def of(self, executed: ir.Node) -> tuple[ir.Node, ...]:
        """Return the producers of its outputs and, for a fused node, the nodes that feed these alone."""
        producers = (self._made.get(value.name) for value in executed.outputs if value.name)
        origins = [node for node in dict.fromkeys(producers) if node is not None and node is not executed]
        if is_fused(executed, origins):
            self._taken.update(origins)
            for node in origins:  # grows during the iteration
                origins += self._absorbed(node)
        return tuple(origins)

    def _absorbed(self, node: ir.Node) -> Iterator[ir.Node]:
        """Return the producers of those of its inputs that no longer exist; each node is absorbed once."""
        for value in node.inputs:
            producer = None if value is None or value.name in self._present else value.producer()
            if producer is not None and producer not in self._taken and producer.op_type != "Constant":
                self._taken.add(producer)
                yield producer


def _present(model: ir.Model) -> Iterator[str]:
    """Yield the names of all values of a graph."""
    for graph in graphs(model.graph):
        values = (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs))
        for value in values:
            yield from filter(None, {value.name, _uncast(value.name)})


def _uncast(name: str | None) -> str | None:
    """Return the model's name of a value that onnxruntime has in another precision under a longer name."""
    return name.removeprefix("InsertedPrecisionFreeCast_") if name else name


def _same(executed: ir.Node, nodes_by_name: Mapping[str, ir.Node]) -> tuple[ir.Node, ...]:
    """Return the model's node of the same operator and name, which onnxruntime may have extended."""
    node = nodes_by_name.get(own_name(executed.name or ""))
    return () if node is None or operator(node) != operator(executed) else (node,)
