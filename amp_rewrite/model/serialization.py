"""Serialisation of models to protobuf, with the fields that loading removed."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable

import onnx
import onnx_ir as ir

from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.model import preserved_fields, traversal
from amp_rewrite.model.loading import Loaded, ModelSource, exported, root_cause

Checkable = onnx.ModelProto | bytes | str
"""An argument of onnx's checker: a model, its bytes, or its path (with external data, only a path)."""


def checkable(source: ModelSource) -> Checkable:
    """Convert a model of any kind to a form that onnx's checker accepts."""
    if isinstance(source, (str, os.PathLike)):
        return str(source)
    if isinstance(source, ir.Model):
        return _serialised(source)
    return source if isinstance(source, (bytes, onnx.ModelProto)) else exported(source)


def to_proto(loaded: Loaded) -> onnx.ModelProto:
    """Convert the model to a ModelProto, with the fields that loading removed."""
    graphs = tuple(traversal.graphs(loaded.model.graph))
    if loaded.preserved is not None:
        _forget_undeclared(graphs, loaded.preserved.declared)
    proto = _serialised(loaded.model)
    preserved_fields.restore_trailing_outputs(loaded.model, proto, graphs)
    if loaded.preserved is not None:
        preserved_fields.restore(loaded.preserved, proto)
    for function in proto.functions:
        function.domain = function.domain or ""  # onnx's checker requires the field, even if empty
    return proto


def _serialised(model: ir.Model) -> onnx.ModelProto:
    try:
        return ir.to_proto(model)
    except ir.serde.SerdeError as error:  # such as a name that is not text, which loading accepts
        raise ModelError(
            f"cannot be written as ONNX ({root_cause(error)})", where="the given model", remedy=EXPORT_AGAIN
        ) from error


def _forget_undeclared(graphs: Iterable[ir.Graph], declared: Container[str | None]) -> None:
    """Remove the types of initializers for which onnx-ir would add a new value_info."""
    for graph in graphs:
        for value in graph.initializers.values():
            if value.name not in declared and not (value.is_graph_input() or value.is_graph_output()):
                value.type = value.shape = None
