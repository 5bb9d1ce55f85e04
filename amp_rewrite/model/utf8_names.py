"""Names that are not valid UTF-8, decoded as Latin-1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from amp_rewrite.model import proto_traversal


def decode(proto: onnx.ModelProto, graphs: Iterable[onnx.GraphProto]) -> bool:
    """Decodes names that are not UTF-8, which some exporters write, as Latin-1; returns whether it did.

    `graphs` are the model's graph and all graphs nested in it.
    """
    try:
        "".join(_names(proto, graphs))
    except TypeError:  # protobuf returns bytes for text that it cannot decode
        _decode(proto)
        return True
    return False


def _names(proto: onnx.ModelProto, graphs: Iterable[onnx.GraphProto]) -> Iterator[str]:
    yield from (proto.producer_name, proto.producer_version, proto.domain, proto.doc_string)
    yield from (imported.domain for imported in proto.opset_import)
    for entry in proto.metadata_props:
        yield from (entry.key, entry.value)
    for graph in graphs:
        yield from (graph.name, graph.doc_string)
        for info in proto_traversal.value_infos(graph):
            yield info.name
            yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim)
        yield from (tensor.name for tensor in graph.initializer)
        yield from _names_of(graph.node)
    for function in proto.functions:
        yield from (function.name, function.domain)
        yield from _names_of(function.node)


def _names_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.doc_string, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _decode(message: Message) -> None:
    for described, value in message.ListFields():
        if described.type == FieldDescriptor.TYPE_MESSAGE:
            for each in (value,) if isinstance(value, Message) else value:
                _decode(each)
        elif described.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, bytes):
                setattr(message, described.name, value.decode("latin-1"))
            elif not isinstance(value, str):
                value[:] = [each.decode("latin-1") if isinstance(each, bytes) else each for each in value]
