"""What precision a node runs in, read from the element types at its ports in the model as it stands."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.onnx_types.element_types import Types


class Precision(enum.Enum):
    """`FULL` is float32 or wider, `MIXED` both, `OTHER` what does no float arithmetic of its own."""

    HALF = "half"
    FULL = "full"
    MIXED = "mixed"
    OTHER = "other"


HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
FULLS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Floats that are computed with; those of 8 bits and less are only stored, and count as integers do."""


def of_type(dtype: ir.DataType | None) -> Precision:
    """The precision of one element type."""
    if dtype in HALVES:
        return Precision.HALF
    return Precision.FULL if dtype in FULLS else Precision.OTHER


def of_node(node: ir.Node, types: Types, version: int) -> Precision:
    """The precision of a node; `version` is that of its domain in the model.

    Half when all its floats are half, full when none is, mixed otherwise. Conversions (Cast,
    QuantizeLinear and their like), quantised arithmetic, Constants and what only asks for a shape are
    OTHER. A port that the schema nails to float32, such as the scales of a Resize, counts only where the
    node has no other floats; an empty stored tensor, such as its regions, and an output that is left out
    do not count.
    """
    key = (node.domain, node.op_type)
    if key in _ASIDE or node.op_type.startswith("QLinear"):
        return Precision.OTHER
    found = _of(types, _free(node, version)) or _of(types, (*node.inputs, *node.outputs))
    if not found:
        return Precision.OTHER
    return found.pop() if len(found) == 1 else Precision.MIXED


def _of(types: Types, values: Iterable[ir.Value | None]) -> set[Precision]:
    kinds = (types.get(value) for value in values if value is not None and _holds(value))
    return {of_type(kind.dtype) for kind in kinds if kind is not None} - {Precision.OTHER}


def _holds(value: ir.Value) -> bool:
    """Whether a value is there and holds anything, as far as that is stored."""
    maker = value.producer()
    held = None if maker is None else constants.constant(maker)
    tensor = value.const_value if held is None else held
    return bool(value.name) and (tensor is None or tensor.size > 0)


def _free(node: ir.Node, version: int) -> Iterator[ir.Value | None]:
    """The values at ports whose type the schema leaves open; at all ports where there is no schema."""
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
"""What changes the element type and nothing else."""

_ASIDE = CASTS | {
    *(("", name) for name in "BitCast Constant DequantizeLinear DynamicQuantizeLinear".split()),
    *(("", name) for name in "ConvInteger MatMulInteger QuantizeLinear Shape Size".split()),
    *((CONTRIB, name) for name in "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul".split()),
    *((CONTRIB, name) for name in "MatMulInteger16 MatMulIntegerToFloat MulInteger QAttention".split()),
    *((CONTRIB, name) for name in "QGemm QuantizeLinear".split()),
}
"""Conversions, quantised arithmetic, Constants, and what looks at shapes only."""
