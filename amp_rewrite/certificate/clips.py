"""Licence: a Clip written as a Max and a Min."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import attributes, tensors
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.element_checks import Array
from amp_rewrite.certificate.numbered import MISSING, Node
from amp_rewrite.certificate.pairs import Pair, Proof
from amp_rewrite.certificate.value_kinds import FLOAT

_LARGEST = float(np.finfo(np.float32).max)
_BOUNDS = (("min", -_LARGEST), ("max", _LARGEST))
"""The attributes of the bounds before opset 11, and what a missing bound is."""


def as_max_and_min(proof: Proof, clip: Node, right: int) -> Sequence[Pair]:
    """`Clip(x, low, high)` is `Min(Max(x, low), high)`, for floats."""
    data, *bounds = operands(proof, right)
    if proof.original.kinds[clip.first] != FLOAT:
        raise DifferentError("they are a Clip, and a Max and a Min, of integers")
    pairs: list[Pair] = [(clip.inputs[0], data)]
    for port, right_bound in enumerate(bounds, start=1):
        left_bound = clip.inputs[port] if port < len(clip.inputs) else MISSING
        if left_bound != MISSING:
            bound = proof.rewritten.stored.get(right_bound)
            if not isinstance(bound, TensorProto) or _has_nan(tensors.whole(bound, proof.rewritten.folder)):
                raise DifferentError("a bound may be NaN, which a Clip ignores, and a Max or a Min returns")
            pairs.append((left_bound, right_bound))
        else:
            proof.stored_number(right_bound, np.array(_number(clip, port), np.float32))
    proof.uses[Licence.MAX_AND_MIN] += 1
    return pairs


def operands(proof: Proof, right: int) -> tuple[int, int, int]:
    """What a Max and a Min of the result clip, and to which bounds; DifferentError for anything else."""
    below = proof.made(right, "Min")
    above = proof.made(below.inputs[0], "Max") if below.inputs else below
    if len(below.inputs) != _TWO or len(above.inputs) != _TWO:
        raise DifferentError("they are not a Clip, and a Max and a Min")
    return above.inputs[0], above.inputs[1], below.inputs[1]


_TWO = 2


def _has_nan(array: Array) -> bool:
    return bool(np.isnan(array.astype(np.float32)).any())


def _number(clip: Node, port: int) -> float:
    name, missing = _BOUNDS[port - 1]
    stated = attributes.of(clip).get(name)
    return missing if stated is None else stated.attribute.f
