"""onnx's shape inference as a second source of types, run on the side because it can crash."""

from __future__ import annotations

import subprocess
import sys

import onnx
import onnx_ir as ir

from amp_rewrite.element_types import Type

_LARGEST = 1 << 28
"""Above this many bytes a model is not sent through: schemas and declarations have to do."""

_CHILD = """
import sys, onnx
model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
sys.stdout.buffer.write(onnx.shape_inference.infer_shapes(model).SerializeToString())
"""


def types_by_name(model: ir.Model) -> dict[str, Type]:
    """The types that onnx infers for the values of the main graph, by name; none where it fails."""
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if size > _LARGEST:
        return {}
    data = ir.to_proto(model).SerializeToString()
    child = subprocess.run([sys.executable, "-c", _CHILD], input=data, capture_output=True)
    if child.returncode != 0:
        return {}
    inferred = onnx.ModelProto.FromString(child.stdout)
    found = {info.name: ir.serde.deserialize_type_proto_for_type(info.type) for info in inferred.graph.value_info}
    return {name: kind for name, kind in found.items() if kind is not None}
