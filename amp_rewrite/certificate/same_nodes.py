"""Whether a node of a result is one of the original, by what the two say themselves."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from onnx import AttributeProto, NodeProto, TensorProto

from amp_rewrite.certificate import attribute_comparison, bit_casts, bodies, calls, constants, signatures

_UNLIKE = bodies.KNOWN | {bit_casts.OPERATOR}
"""Operators that may do something else in another precision, or by what stands around them."""
_STORING = (constants.OPERATOR, attribute_comparison.FILL)


def says_all(operator: tuple[str, str], version: int) -> bool:
    """Whether a node of this operator is all that its bytes and inputs say, in any precision."""
    is_other = operator[0] or operator in _UNLIKE or operator in _STORING
    return not is_other and signatures.schema(*operator, version) is not None


def is_inside(operator: tuple[str, str], proto: Any) -> bool:
    """The same of one node whose operator may refer to what is stored elsewhere."""
    return operator not in _UNLIKE and all(map(_is_inside, proto.attribute))


def _is_inside(attribute: AttributeProto) -> bool:
    if attribute.type == AttributeProto.TENSOR:
        return attribute.t.data_location != TensorProto.EXTERNAL
    return attribute.type not in attribute_comparison.HOLDING


def identical(before: Any, after: Any) -> bool:
    """Whether two nodes are the same to the byte, names included, but for metadata that the second adds."""
    said, text = before.SerializeToString(), after.SerializeToString()
    return text.startswith(said) and _is_metadata(text[len(said) :])


_METADATA, _HEADER, _SHORT = NodeProto.METADATA_PROPS_FIELD_NUMBER << 3 | 2, 2, 128
"""How a short entry of metadata begins in bytes: its tag, and in one byte the length of what follows."""


def _is_metadata(text: bytes) -> bool:
    """Whether a part of a node has nothing but metadata."""
    if not text or (text[0] == _METADATA and text[1] == len(text) - _HEADER < _SHORT):
        return True
    try:
        node = NodeProto.FromString(text)
    except DecodeError:
        return False
    node.ClearField("metadata_props")
    return not node.ByteSize()


def alike(before: Any, after: Any) -> bool:
    """Whether two nodes have the same operator and attributes, and leave out the same outputs."""
    return (
        before.op_type == after.op_type
        and calls.key(before) == calls.key(after)
        and attribute_comparison.alike(before, after)
        and [not name for name in before.output] == [not name for name in after.output]
    )
