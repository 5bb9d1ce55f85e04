"""Licence: a node that gives what it is given is left out."""

from __future__ import annotations

from collections.abc import Sequence

from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.numbered import Node
from amp_rewrite.certificate.pairs import DifferentError, Pair, Proof


def left_out(proof: Proof, idle: Node, right: int) -> Sequence[Pair]:
    """`Identity(x)` is `x`."""
    if len(idle.inputs) != 1:
        raise DifferentError("an Identity has several inputs")
    proof.uses[Licence.IDLE] += 1
    return [(idle.inputs[0], right)]
