"""What a CastLike is once the kind of the value that it follows is known: a Cast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import NodeProto, helper

from amp_rewrite.certificate.value_kinds import Kind

CAST, CAST_LIKE = ("", "Cast"), ("", "CastLike")


def as_cast(proto: Any, likes: Sequence[Kind]) -> NodeProto | None:
    """The Cast that such a node is, of its first input alone, from the kinds of the others; None where there
    is not one of a tensor.
    """
    like = likes[0] if len(likes) == 1 else None
    if not isinstance(like, int):
        return None
    cast = NodeProto()
    cast.CopyFrom(proto)  # names that are no UTF-8 as well
    cast.op_type = "Cast"
    del cast.input[1:], cast.attribute[:]
    cast.attribute.extend(attribute for attribute in proto.attribute if attribute.name != "to")
    cast.attribute.append(helper.make_attribute("to", like))
    return cast
