"""Whether stored numbers are exact ones, rounded to float32 at most a few times and then to half."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.element_checks import Array
from amp_rewrite.certificate.stored_values import Held
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16

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
    around = slack * np.abs(exact if size is None else size)
    wrong = _outside(exact, around, found)
    if not wrong.any() or any(not _outside(exact, around, given).any() for given in _as_halves(found)):
        return ""
    place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return f"element {tuple(map(int, place))} should be {exact[place]:.6g}, and is {float(found[place]):.6g}"


def _outside(exact: Array, around: Array, found: Array) -> Array:
    with np.errstate(all="ignore"):
        low, high = ((exact + by).astype(np.float32).astype(found.dtype) for by in (-around, around))
        inside = (low <= found) & (found <= high)
    return ~(inside | (np.isnan(exact) & np.isnan(found.astype(np.float32))))


def _as_halves(found: Array) -> Iterator[Array]:
    """Float32 numbers in each half type that holds all of them: they may have been rounded to it."""
    for half in (FLOAT16, BFLOAT16) if found.dtype == np.float32 else ():
        with np.errstate(all="ignore"):
            given = found.astype(half.numpy)
        if np.array_equal(given.astype(np.float32), found, equal_nan=True):
            yield given


_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
