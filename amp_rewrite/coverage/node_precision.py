"""The precision that a node runs in, from the element types of its inputs and outputs."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.onnx_types.element_types import Types


class Precision(enum.Enum):
    """FULL is float32 or float64, MIXED is both, OTHER does no float arithmetic of its own."""

    HALF = "half"
    FULL = "full"
    MIXED = "mixed"
    OTHER = "other"


HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
FULLS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Float types used in arithmetic; those of 8 bits and less are storage types and count as integers."""


def of_type(dtype: ir.DataType | None) -> Precision:
    """The precision of one element type."""
    if dtype in HALVES:
        return Precision.HALF
    return Precision.FULL if dtype in FULLS else Precision.OTHER


def of_node(node: ir.Node, types: Types, version: int) -> Precision:
    """The precision of a node; `version` is the opset version of its domain in the model.

    HALF when all its floats are half, FULL when none is, else MIXED. Conversions (Cast, QuantizeLinear and
    the like), quantised arithmetic, Constants and shape queries are OTHER. A port whose type the schema fixes
    to float32, such as the scales of a Resize, counts only where the node has no other floats; an empty
    stored tensor, such as the `roi` of a Resize, and an omitted output do not count.
    """
    key = (node.domain, node.op_type)
    if key in _NO_ARITHMETIC or node.op_type.startswith("QLinear"):
        return Precision.OTHER
    found = _of(types, _variable(node, version)) or _of(types, (*node.inputs, *node.outputs))
    if not found:
        return Precision.OTHER
    return found.pop() if len(found) == 1 else Precision.MIXED


def _of(types: Types, values: Iterable[ir.Value | None]) -> set[Precision]:
    kinds = (types.get(value) for value in values if value is not None and _has_elements(value))
    return {of_type(kind.dtype) for kind in kinds if kind is not None} - {Precision.OTHER}


def _has_elements(value: ir.Value) -> bool:
    """Whether a value exists and, if it is stored, has any elements."""
    producer = value.producer()
    constant = None if producer is None else constants.constant(producer)
    tensor = value.const_value if constant is None else constant
    return bool(value.name) and (tensor is None or tensor.size > 0)


def _variable(node: ir.Node, version: int) -> Iterator[ir.Value | None]:
    """The values at ports with a type variable; at all ports where there is no schema."""
    inputs, outputs = node.inputs, node.outputs
    layout = schema.layout(node.domain, node.op_type, version, len(inputs), len(outputs))
    if layout is None:
        yield from (*inputs, *outputs)
        return
    for group in layout:
        if not group.var.name.startswith("tensor("):
            yield from (inputs[i] for i in group.inputs)
            yield from (outputs[i] for i in group.outputs)


CASTS = frozenset({("", "Cast"), ("", "CastLike")})
"""Operators that change the element type and nothing else."""

_NO_ARITHMETIC = CASTS | {
    *(("", name) for name in "BitCast Constant DequantizeLinear DynamicQuantizeLinear".split()),
    *(("", name) for name in "ConvInteger MatMulInteger QuantizeLinear Shape Size".split()),
    *((CONTRIB, name) for name in "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul".split()),
    *((CONTRIB, name) for name in "MatMulInteger16 MatMulIntegerToFloat MulInteger QAttention".split()),
    *((CONTRIB, name) for name in "QGemm QuantizeLinear".split()),
}
"""Conversions, quantised arithmetic, Constants, and shape queries."""
