"""Operators whose output element type is given by an attribute, such as `to` of Cast."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.numerics.half import BFLOAT16, Half

_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")


@dataclass(frozen=True, slots=True)
class TypedBy:
    """`attribute` gives the type of the type variable `var`: as a data type's number, or that of a tensor.

    Without the attribute it is the type of variable `like`, or else `default`. If `settable`, setting the
    attribute changes the type and nothing else.
    """

    attribute: str
    var: str
    default: ir.DataType | None = ir.DataType.FLOAT
    like: str | None = None
    settable: bool = True


_TABLE: dict[tuple[str, str], TypedBy] = {
    ("", "Cast"): TypedBy("to", "T2", default=None),
    ("", "ConstantOfShape"): TypedBy("value", "T2"),
    ("", "EyeLike"): TypedBy("dtype", "T2", like="T1"),
    ("", "Bernoulli"): TypedBy("dtype", "T2", like="T1"),
    ("", "Multinomial"): TypedBy("dtype", "T2", default=ir.DataType.INT32),
    ("", "RandomNormal"): TypedBy("dtype", "T"),
    ("", "RandomUniform"): TypedBy("dtype", "T"),
    ("", "RandomNormalLike"): TypedBy("dtype", "T2", like="T1"),
    ("", "RandomUniformLike"): TypedBy("dtype", "T2", like="T1"),
    ("", "MelWeightMatrix"): TypedBy("output_datatype", "T3"),
    ("", "DequantizeLinear"): TypedBy("output_dtype", "T3", like="T2"),
    ("", "SequenceEmpty"): TypedBy("dtype", "S"),
    ("", "BitCast"): TypedBy("to", "T2", default=None, settable=False),
    ("", "LayerNormalization"): TypedBy("stash_type", "U", settable=False),
    ("", "SimplifiedLayerNormalization"): TypedBy("stash_type", "U", settable=False),
} | {("", window): TypedBy("output_datatype", "T2") for window in _WINDOWS}


OPERATORS = frozenset(operator for _, operator in _TABLE)
"""The operators that have such an attribute."""

FIRST_TYPED_CAST = 6
"""The first opset whose Cast gives its type as a number; runtimes have no kernels for earlier ones."""

_FIRST_BFLOAT16_CAST = 13
"""The first opset whose operators take bfloat16 (Cast, MatMul, Add and their like, ONNX 1.8)."""


def first_opset_with(half: Half) -> int:
    """The first opset whose Cast knows a half type."""
    return _FIRST_BFLOAT16_CAST if half is BFLOAT16 else FIRST_TYPED_CAST


def of(node: ir.Node) -> TypedBy | None:
    """Which attribute of this node gives the type of which type variable; None if none does."""
    return _TABLE.get((node.domain, node.op_type))


def declared(node: ir.Node, typed: TypedBy) -> ir.DataType | None:
    """The type that the node's attribute gives; None if the attribute is absent or invalid."""
    attribute = node.attributes.get(typed.attribute)
    if attribute is None or attribute.is_ref():
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.value.dtype
    if attribute.type == ir.AttributeType.STRING:  # a Cast before FIRST_TYPED_CAST
        return ir.DataType.__members__.get(attribute.as_string())
    try:
        return ir.DataType(int(attribute.value)) or None  # 0 is UNDEFINED
    except ValueError:
        return None


def of_constant(node: ir.Node) -> ir.DataType | None:
    """The element type of a Constant node's output, whichever attribute holds its value."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.TENSOR:
            return attribute.value.dtype
        if attribute.name in _CONSTANTS:
            return _CONSTANTS[attribute.name]
    return None


_CONSTANTS = {
    "value_float": ir.DataType.FLOAT,
    "value_floats": ir.DataType.FLOAT,
    "value_int": ir.DataType.INT64,
    "value_ints": ir.DataType.INT64,
    "value_string": ir.DataType.STRING,
    "value_strings": ir.DataType.STRING,
}
