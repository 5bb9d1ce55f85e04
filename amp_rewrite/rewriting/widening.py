"""Half tensors and half types in a model, made float32."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.model import constants
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.rewriting import editing


def widen_attributes(node: ir.Node, halves: Container[ir.DataType | None] = HALF_TYPES) -> None:
    """Widen tensors of these types in attributes to float32, and the types that attributes name."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            if attribute.as_tensor().dtype in halves:
                node.attributes[name] = ir.AttrTensor(name, widened(attribute.as_tensor()))
        elif attribute.type == ir.AttributeType.TYPE_PROTO and not attribute.is_ref():
            value_type = attribute.value.type
            if value_type.dtype in halves:
                wide = element_types.with_element(value_type, ir.DataType.FLOAT)
                type_and_shape = ir.TypeAndShape(wide, attribute.value.shape)
                node.attributes[name] = ir.Attr(name, ir.AttributeType.TYPE_PROTO, type_and_shape)
    typed = schema.of(node)
    if typed is None or not typed.settable or node.op_type in ("Cast", "ConstantOfShape"):
        return
    if schema.declared(node, typed) in halves:
        wide_type = int(ir.DataType.FLOAT)
        node.attributes[typed.attribute] = ir.AttrInt64(typed.attribute, wide_type)


def widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return the tensor in float32 where it is half; a large one is converted when it is written."""
    if tensor.dtype not in HALF_TYPES:
        return tensor
    if tensor.nbytes < editing.LAZY_FROM:
        return ir.Tensor(_to_float32(tensor.numpy()), name=tensor.name)
    return constants.ConvertedTensor(tensor, _to_float32, ir.DataType.FLOAT, tensor.name)


def _to_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    return array.astype(np.float32)
