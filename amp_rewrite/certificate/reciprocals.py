"""Licence: a Reciprocal written as a division."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.numbered import Node
from amp_rewrite.certificate.pairs import Pair, Proof
from amp_rewrite.certificate.value_kinds import FLOAT


def as_division(proof: Proof, node: Node, right: int) -> Sequence[Pair]:
    """`Reciprocal(x)` is `1 / x`, rounded once as well."""
    division = proof.made(right, "Div")
    if len(division.inputs) != 2 or proof.original.kinds[node.first] != FLOAT:
        raise DifferentError("they are not a Reciprocal and a division")
    proof.stored_number(division.inputs[0], np.array(1, np.float32))
    proof.uses[Licence.RECIPROCAL] += 1
    return [(node.inputs[0], division.inputs[1])]
