"""What a Constant node stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import AttributeProto, numpy_helper

from amp_rewrite.certificate import attributes
from amp_rewrite.certificate.numbered import Scope
from amp_rewrite.errors import EXPORT_AGAIN, ModelError

OPERATOR = ("", "Constant")


def stored(proto: Any, scope: Scope) -> Any:
    """The tensor, dense or sparse, that the one attribute of a Constant gives; ModelError where there is not
    one, or its name says another type than it has: one runtime goes by the name, another by the type.
    """
    if len(proto.output) > 1 or len(proto.input):
        raise ModelError("has a Constant with inputs, or with several outputs", remedy=EXPORT_AGAIN)
    if scope.bound is None and len(proto.attribute) == 1:  # as most are, and this is quick
        (attribute,) = proto.attribute
        if attribute.name == "value" and attribute.type == AttributeProto.TENSOR:
            return attribute.t
    given = attributes.bound(proto, scope)
    if len(given) != 1:
        raise ModelError("has a Constant without a value, or with several", remedy=EXPORT_AGAIN)
    ((name, held),) = given.items()
    kind, field, dtype = _VALUES.get(name, (None, "", None))
    if held.attribute.type != kind:
        raise ModelError(f"has a Constant with a value '{name}' of another type", remedy=EXPORT_AGAIN)
    value = getattr(held.attribute, field)
    return value if dtype is None else numpy_helper.from_array(np.array(value, dtype))


_VALUES: Mapping[str, tuple[int | None, str, Any]] = {
    "value": (AttributeProto.TENSOR, "t", None),
    "sparse_value": (AttributeProto.SPARSE_TENSOR, "sparse_tensor", None),
    "value_float": (AttributeProto.FLOAT, "f", np.float32),
    "value_floats": (AttributeProto.FLOATS, "floats", np.float32),
    "value_int": (AttributeProto.INT, "i", np.int64),
    "value_ints": (AttributeProto.INTS, "ints", np.int64),
    "value_string": (AttributeProto.STRING, "s", object),
    "value_strings": (AttributeProto.STRINGS, "strings", object),
}
