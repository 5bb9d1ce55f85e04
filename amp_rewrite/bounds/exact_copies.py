"""Which values hold the same numbers: what Identities pass on, and Casts that lose nothing."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.onnx_types.element_types import Types

_NARROWER = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


def origin(value: ir.Value, types: Types) -> ir.Value:
    """The value of which this one is an exact copy."""
    node = value.producer()
    while node is not None and not node.domain and node.inputs and (source := node.inputs[0]) is not None:
        if not (node.op_type == "Identity" or (node.op_type == "Cast" and is_lossless(node, types))):
            break
        value, node = source, source.producer()
    return value


def is_lossless(cast: ir.Node, types: Types) -> bool:
    """Whether a Cast goes to float32 or float64, from a type of floats that is no wider."""
    to, source = cast.attributes.get("to"), types.get(cast.inputs[0]) if cast.inputs[0] is not None else None
    if to is None or to.is_ref() or not isinstance(source, ir.TensorType):
        return False
    dtype, given = ir.DataType(to.as_int()), source.dtype
    wide = dtype == ir.DataType.DOUBLE and given == ir.DataType.DOUBLE
    return wide or (dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) and given in _NARROWER)


def are_same(a: ir.Value | None, b: ir.Value | None, types: Types) -> bool:
    """Whether both hold the same numbers in the same places."""
    return a is not None and b is not None and (a is b or origin(a, types) is origin(b, types))


def maker(value: ir.Value | None, types: Types, *operators: str) -> ir.Node | None:
    """The node that makes the numbers of a value, if it is one of these operators of the default domain."""
    node = origin(value, types).producer() if value is not None else None
    return node if node is not None and not node.domain and node.op_type in operators else None
