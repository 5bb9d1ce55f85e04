"""What a Constant node stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import numpy_helper

from amp_rewrite.certificate.numbered import Bound
from amp_rewrite.errors import EXPORT_AGAIN, ModelError


def stored(given: Mapping[str, Bound]) -> Any:
    """The tensor, dense or sparse, that these attributes of a Constant give; ModelError without one."""
    for name, held in given.items():
        attribute = held.attribute
        if name == "value":
            return attribute.t
        if name == "sparse_value":
            return attribute.sparse_tensor
        if name in _SCALARS:
            field, dtype = _SCALARS[name]
            return numpy_helper.from_array(np.array(getattr(attribute, field), dtype))
    raise ModelError("has a Constant without a value", remedy=EXPORT_AGAIN)


_SCALARS: Mapping[str, tuple[str, Any]] = {
    "value_float": ("f", np.float32),
    "value_floats": ("floats", np.float32),
    "value_int": ("i", np.int64),
    "value_ints": ("ints", np.int64),
    "value_string": ("s", object),
    "value_strings": ("strings", object),
}
