"""Licence: a term is taken away in place of adding its negative."""

from __future__ import annotations

from collections.abc import Sequence

from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.numbered import Node
from amp_rewrite.certificate.pairs import DifferentError, Pair, Proof

_TWO = 2
_AS_NUMPY = 7
"""From this opset on operands broadcast as NumPy's."""


def of_negative(proof: Proof, total: Node, right: int) -> Sequence[Pair]:
    """`Add(b, Neg(a))` and `Add(Neg(a), b)` are `Sub(b, a)`; of two negatives the first is taken away."""
    difference, makers = proof.made(right, "Sub"), proof.original.makers
    if total.version < _AS_NUMPY or total.proto.attribute or len(total.inputs) != _TWO:
        raise DifferentError("they are not a sum and a difference")
    for port, term in enumerate(total.inputs):
        negative = makers[term]
        if negative is not None and negative.operator == ("", "Neg"):
            proof.uses[Licence.DIFFERENCE] += 1
            return [
                (total.inputs[1 - port], difference.inputs[0]),
                (negative.inputs[0], difference.inputs[1]),
            ]
    raise DifferentError("the sum has no negative term")
