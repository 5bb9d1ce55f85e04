"""Licence: a product of a value with itself written as its power of 2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.numbered import Node
from amp_rewrite.certificate.pairs import Pair, Proof
from amp_rewrite.certificate.value_kinds import FLOAT


def as_power(proof: Proof, product: Node, right: int) -> Sequence[Pair]:
    """`Mul(x, x)` is `Pow(x, 2)`, for floats."""
    power = proof.made(right, "Pow")
    base, factors = power.inputs[0], product.inputs
    if len(factors) != _TWO or factors[0] != factors[1] or proof.original.kinds[product.first] != FLOAT:
        raise DifferentError("they are not a square and a power of 2")
    proof.stored_number(power.inputs[1], np.array(_TWO, np.float32))
    proof.uses[Licence.SQUARE] += 1
    return [(factors[0], base)]


_TWO = 2
