"""Licence: a Clip written as a Max and a Min."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amp_rewrite.certificate import attributes
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.numbered import MISSING, Node
from amp_rewrite.certificate.pairs import DifferentError, Pair, Proof
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


def _number(clip: Node, port: int) -> float:
    name, missing = _BOUNDS[port - 1]
    stated = attributes.of(clip).get(name)
    return missing if stated is None else stated.attribute.f
