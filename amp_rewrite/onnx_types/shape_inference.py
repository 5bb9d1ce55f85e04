"""Types of values from the schemas, with onnx's shape inference as a fallback."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Type, Types, tensor
from amp_rewrite.process import worker, worker_process

_LARGEST = 1 << 28
"""Bytes beyond which onnx's shape inference is not used: it would copy the model several times."""


def types(model: ir.Model) -> Types:
    """Return the types of a model's values: from schemas and declarations, with onnx as a fallback."""
    value_types = element_types.infer(model)
    if element_types.complete(model, value_types):
        return value_types
    return element_types.infer(model, _inferred(model))


def _inferred(model: ir.Model) -> dict[str, Type]:
    """Return the types that onnx infers for the values of the main graph, by name; none if it fails."""
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if size > _LARGEST or (model.functions and element_types.node_count(model) > element_types.MOST_NODES):
        return {}
    data = ir.to_proto(model).SerializeToString()
    inferred = worker.call(worker_process.infer_model, data, propagates_data=False) or {}
    kinds = {name: _type(onnx.TypeProto.FromString(kind)) for name, kind in inferred.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _type(proto: onnx.TypeProto) -> Type | None:
    """Return the type of a tensor; None for other types, for which the schemas suffice."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.elem_type:
        return None
    return tensor(ir.DataType(proto.tensor_type.elem_type))
