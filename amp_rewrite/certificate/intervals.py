"""Whether stored numbers are exact ones, rounded to float32 at most a few times and then to half."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.stored_values import Held
from amp_rewrite.certificate.tensors import Array

SLACK = 2.0**-22
"""Of each number, what float32 may have lost: two roundings."""


def differs(exact: Array, rewritten: Held, size: Array | None = None, slack: float = SLACK) -> str:
    """What is wrong with stored numbers; empty where each lies between the exact one less and plus `slack`
    times its `size` (of the terms of a sum; else its own), both rounded as it is.
    """
    tensor = rewritten.tensor
    if tensors.dims(tensor) != exact.shape:
        return f"the shape {list(exact.shape)} is {list(tensors.dims(tensor))}"
    if tensor.data_type not in _FLOATS:
        return "they are no floats"
    found = tensors.whole(tensor, rewritten.folder)
    with np.errstate(all="ignore"):
        around = slack * np.abs(exact if size is None else size)
        low, high = ((exact + by).astype(np.float32).astype(found.dtype) for by in (-around, around))
        inside = (low <= found) & (found <= high)
    wrong = ~(inside | (np.isnan(exact) & np.isnan(found.astype(np.float32))))
    if not wrong.any():
        return ""
    place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return f"element {tuple(map(int, place))} should be {exact[place]:.6g}, and is {float(found[place]):.6g}"


_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
