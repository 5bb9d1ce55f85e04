"""A CastLike of the result, of which only the original declares the type of the value that it follows."""

from __future__ import annotations

from collections.abc import Sequence

from amp_rewrite.certificate.cast_likes import CAST
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.numbered import Node
from amp_rewrite.certificate.pairs import Pair, Proof
from amp_rewrite.certificate.value_kinds import FLOAT


def followed(proof: Proof, left: int, node: Node) -> Sequence[Pair]:
    """What is left to prove of a value of the original and such a node, which may be a Cast or nothing there.

    The value of the original that has the name of the one it follows is only a guess: that the two are the
    same is left to prove as well.
    """
    original = proof.original
    data, like = node.inputs[:2]
    guess = original.roots[proof.named(proof.rewritten.names[like])]
    kind, cast = original.kinds[guess], original.makers[left]
    is_plain = len(node.inputs) == 2 and node.count == 1 and not len(node.proto.attribute)
    if not is_plain or not isinstance(kind, int) or original.kinds[left] != kind:
        raise DifferentError("it is not known to what type the result casts")
    if cast is not None and cast.operator == CAST and cast.count == len(cast.proto.attribute) == 1:
        return [(cast.inputs[0], data), (guess, like)]
    if kind != FLOAT or proof.rewritten.kinds[data] not in (None, FLOAT):
        raise DifferentError("it is not known to what type the result casts")
    return [(left, data), (guess, like)]
