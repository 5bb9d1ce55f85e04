"""Whether two BitCasts read bits of one type: float16 and bfloat16 are one kind, and have other bits."""

from __future__ import annotations

from onnx import TensorProto

from amp_rewrite.certificate import attributes, value_kinds
from amp_rewrite.certificate.numbered import Node, Numbered
from amp_rewrite.certificate.pairs import Proof

OPERATOR = ("", "BitCast")


def same(proof: Proof, a: Node, b: Node) -> bool:
    """Whether what both read is known to have one element type, where it is a float."""
    if proof.original.kinds[a.inputs[0]] != value_kinds.FLOAT:
        return True
    before, after = _element(proof.original, a), _element(proof.rewritten, b)
    return before == after != TensorProto.UNDEFINED


def _element(model: Numbered, node: Node) -> int:
    """The float type whose bits a BitCast reads, UNDEFINED where it is not known."""
    stated = attributes.of(node).get("to")
    if stated is not None and stated.attribute.i in _AS_FLOAT32:
        return TensorProto.FLOAT
    name, scope = node.proto.input[0], node.scope
    number = scope.find(name)
    if number is None or scope.bound is not None:
        return TensorProto.UNDEFINED  # what a function reads stands for what is before the Casts of its call
    tensor, maker = model.stored.get(number), model.makers[number]
    if isinstance(tensor, TensorProto):
        return tensor.data_type
    if maker is not None:
        given = attributes.of(maker).get("to") if maker.operator == ("", "Cast") else None
        return TensorProto.UNDEFINED if given is None else given.attribute.i
    declared = (info.type.tensor_type.elem_type for info in model.proto.graph.input if info.name == name)
    return next(declared, TensorProto.UNDEFINED)


_AS_FLOAT32 = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT32)
"""What has as many bits as float32 alone."""
