"""The half type of a model, by its Casts, stored tensors and inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from amp_rewrite.model import loading, proto_traversal
from amp_rewrite.numerics.half import BY_NAME, Half
from amp_rewrite.running.sessions import Runnable


def half_of(model: Runnable) -> Half | None:
    """The half type that a model has, the first one that is found; None for a model without half."""
    proto = model if isinstance(model, onnx.ModelProto) else loading.load_graph(Path(model))
    return next((_HALVES[dtype] for dtype in _element_types(proto) if dtype in _HALVES), None)


_HALVES = {int(half.dtype): half for half in BY_NAME.values()}


def _element_types(proto: onnx.ModelProto) -> Iterator[int]:
    for node in proto_traversal.every_node(proto):
        if node.op_type == "Cast":
            yield from (attribute.i for attribute in node.attribute if attribute.name == "to")
    for graph in (*proto_traversal.graphs(proto.graph), *proto_traversal.in_functions(proto)):
        yield from (tensor.data_type for tensor in graph.initializer)
        yield from (declared.type.tensor_type.elem_type for declared in graph.input)
