"""What a model says twice, and otherwise the second time, so that nobody knows which of the two counts.

onnxruntime 1.32 takes the first of two Constant values, the last of two small initializers, and the first of
large ones; onnx-ir and onnx's reference take the last of all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import Message

from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.model import proto_traversal


def refuse(proto: onnx.ModelProto, graphs: Collection[onnx.GraphProto], where: str | Path) -> None:
    """Raises ModelError where a model, which has these graphs, contradicts itself."""
    found = next(_contradictions(proto, graphs), None)
    if found is not None:
        raise ModelError(found, where=where, remedy=EXPORT_AGAIN)


def _contradictions(proto: onnx.ModelProto, graphs: Collection[onnx.GraphProto]) -> Iterator[str]:
    for graph in (*graphs, *proto_traversal.in_functions(proto)):
        stored = [(tensor.name, tensor) for tensor in graph.initializer]
        stored += [(tensor.values.name, tensor) for tensor in graph.sparse_initializer]
        for name in _differing(stored):
            yield f"stores '{name}' twice, with different values"
    for name in _differing((f"{f.domain}.{f.name}:{f.overload}", f) for f in proto.functions):
        yield f"has two functions '{name.removesuffix(':')}'"
    for node in proto_traversal.every_node(proto):
        if len(node.attribute) > 1:
            for name in _differing((attribute.name, attribute) for attribute in node.attribute):
                yield f"has a node {node.op_type} '{node.name}' with two attributes '{name}'"


def _differing(named: Iterable[tuple[str, Message]]) -> Iterator[str]:
    """The names of messages that differ from an earlier one of the same name."""
    found: dict[str, Message] = {}
    for name, message in named:
        first = found.setdefault(name, message)
        if first is not message and first.SerializeToString() != message.SerializeToString():
            yield name
