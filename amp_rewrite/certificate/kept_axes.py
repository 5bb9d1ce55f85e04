"""Licence: a reduction keeps its axes, which an Unsqueeze gives back in the original."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import AttributeProto, TensorProto

from amp_rewrite.certificate import attributes, tensors, versions
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered
from amp_rewrite.certificate.pairs import DifferentError, Pair, Proof


def of_reduction(proof: Proof, unsqueeze: Node, right: int) -> Sequence[Pair]:
    """`Unsqueeze(Reduce <keepdims = 0> (x, axes), axes)` is `Reduce <keepdims = 1> (x, axes)`."""
    before, after = proof.original.makers[unsqueeze.inputs[0]], proof.rewritten.makers[right]
    if before is None or after is None or not _differ_in_keeping(before, after):
        raise DifferentError("they are not a reduction that drops its axes, and one that does not")
    if before.version != after.version:
        _count_version(proof, before, after)
    axes = _axes(proof.original, before)
    if not axes or axes != _axes(proof.rewritten, after) or axes != _axes(proof.original, unsqueeze):
        raise DifferentError("they are not reductions of the axes that the Unsqueeze gives back")
    proof.same_kind(unsqueeze.first, right)
    proof.uses[Licence.KEPT_AXES] += 1
    return [(before.inputs[0], after.inputs[0])]


def _differ_in_keeping(before: Node, after: Node) -> bool:
    """Whether both are the same reduction, one of which drops its axes, and the other one keeps them."""
    if before.operator != after.operator or before.operator[0]:
        return False
    first, second = _stated(before), _stated(after)
    keeps = first.pop("keepdims", None), second.pop("keepdims", None)
    drops = keeps[0] is not None and not keeps[0].i
    says = [{name: attributes.content(held) for name, held in said.items()} for said in (first, second)]
    return drops and (keeps[1] is None or bool(keeps[1].i)) and says[0] == says[1]


def _count_version(proof: Proof, before: Node, after: Node) -> None:
    if not versions.same(before, after.version, proof.ranks.of):
        raise DifferentError("they are of versions that may differ")
    proof.uses[Licence.OPSET] += 1


def _stated(node: Node) -> dict[str, AttributeProto]:
    """What a node states but for its axes, which are compared by themselves, and are not empty."""
    given = attributes.plain(attributes.of(node))
    return {name: held for name, held in given.items() if name not in ("axes", "noop_with_empty_axes")}


def _axes(model: Numbered, node: Node) -> list[int]:
    """The axes of a node in ascending order, none where they are not stated or stored."""
    stated = attributes.of(node).get("axes")
    if stated is not None:
        return sorted(stated.attribute.ints)
    given = node.inputs[1] if len(node.inputs) > 1 else MISSING
    stored = model.stored.get(given)
    if not isinstance(stored, TensorProto) or stored.data_type != TensorProto.INT64:
        return []
    return sorted(int(axis) for axis in tensors.whole(stored, model.folder).reshape(-1))
