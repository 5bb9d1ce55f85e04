"""What kinds of values enter the bodies of control flow, and leave them."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from amp_rewrite.certificate.numbered import Node
from amp_rewrite.certificate.value_kinds import SEQUENCE, Kind

KNOWN = frozenset(("", operator) for operator in ("If", "Loop", "Scan", "SequenceMap"))
"""The operators of ONNX that have bodies."""

_FIRST_SCAN_WITHOUT_BATCH = 9


def entering(node: Node, kinds: Sequence[Kind]) -> Sequence[Kind]:
    """The kinds of the inputs of the bodies of a node, from those of its own."""
    if node.operator == ("", "Loop"):
        return (int(TensorProto.INT64), int(TensorProto.BOOL), *kinds[2:])
    if node.operator == ("", "Scan"):
        return kinds if node.version >= _FIRST_SCAN_WITHOUT_BATCH else kinds[1:]
    if node.operator == ("", "SequenceMap"):
        return [kind[1] if isinstance(kind, tuple) and kind[0] == SEQUENCE else kind for kind in kinds]
    return ()


def results(node: Node, leaving: Sequence[Sequence[Kind]]) -> Sequence[Kind]:
    """The kinds of the outputs of a node, from those of its bodies."""
    first = next(iter(leaving), ())
    if node.operator == ("", "Loop"):
        return first[1:]
    if node.operator == ("", "SequenceMap"):
        return [(SEQUENCE, kind) for kind in first]
    return first if node.operator in KNOWN else ()


def repeating(node: Node | None) -> Node | None:
    """The node that computes the values of the bodies of a node more than once, or not at all; None for one
    outside of such. An If computes its bodies once at most.
    """
    if node is None or node.operator != ("", "If"):
        return node
    return node.scope.repeated
