"""The rules by which a node of the original may stand as others in the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amp_rewrite.certificate import (
    clips,
    fused_convs,
    merged_norms,
    reciprocals,
    squares,
)
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.numbered import Node
from amp_rewrite.certificate.pairs import Pair, Proof

Rule = Callable[[Proof, Node, int], Sequence[Pair]]
"""What is left to prove of a node of the original and a value of the result; raises DifferentError."""


def rule(a: Node, b: Node | None) -> Rule | None:
    """The rule for two nodes of different operators; None where there is none."""
    if a.operator in _WHATEVER_STANDS or b is None or a.operator[0] or b.operator[0]:
        return _WHATEVER_STANDS.get(a.operator)
    return _EXCHANGED.get((a.operator[1], b.operator[1]))


def _left_out(proof: Proof, node: Node, right: int) -> Sequence[Pair]:
    """`Identity(x)` is `x`."""
    proof.uses[Licence.IDENTITY] += 1
    return [(node.inputs[0], right)]


_WHATEVER_STANDS: dict[tuple[str, str], Rule] = {
    ("", "Identity"): _left_out,
    ("", "Clip"): clips.as_max_and_min,
    ("", "Reciprocal"): reciprocals.as_division,
    ("", "BatchNormalization"): merged_norms.into_product,
    ("com.microsoft", "FusedConv"): fused_convs.taken_apart,
}
"""By the operator of the original alone."""

_EXCHANGED: dict[tuple[str, str], Rule] = {
    ("Mul", "Pow"): squares.as_power,
}
"""By both operators, which are ONNX's."""
