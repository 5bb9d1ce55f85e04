"""Whether two nodes of one operator have the same attributes, stated or by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import AttributeProto, TensorProto, helper

from amp_rewrite.certificate import attributes, bit_casts, signatures, stored_values, value_kinds
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.numbered import Node
from amp_rewrite.certificate.pairs import Proof
from amp_rewrite.certificate.stored_values import Held

FILL = ("", "ConstantOfShape")
_ZERO = helper.make_attribute("value", TensorProto(dims=[1], data_type=TensorProto.FLOAT, raw_data=bytes(4)))
"""What a ConstantOfShape without a value fills with, which its schema does not tell."""

_FIXED = frozenset((("", "BitCast"), ("", "Multinomial"), FILL))
"""Operators whose attribute for a type is not one for a float, or says more than the type."""


def differing(proof: Proof, a: Node, b: Node) -> str | None:
    """The name of the first attribute that differs, which may be empty; None where none does.

    One that gives the type of an output, which is known to be a float of both, may be another.
    """
    if a.operator == bit_casts.OPERATOR and not bit_casts.same(proof, a, b):
        return "to"
    if a.scope.bound is None is b.scope.bound and alike(a.proto, b.proto):
        return None
    before, after = (attributes.plain(attributes.of(node)) for node in (a, b))
    for name in sorted({*before, *after}, key=str):
        one, other = _stated(before, a, name), _stated(after, b, name)
        if one is None or other is None:
            same = one is other or _is_type(proof, a, b, name)
        else:
            same = _same(proof, a, b, name, one, other)
        if not same:
            return name
    return _unread_bodies(a, b)


def _unread_bodies(a: Node, b: Node) -> str | None:
    """The name of a body of an operator that has none; None where there is none."""
    given = ((node, name, held) for node in (a, b) for name, held in attributes.of(node).items())
    return next((n for node, n, held in given if not node.bodies and attributes.has_graphs(held)), None)


def alike(a: Any, b: Any) -> bool:
    """Whether two nodes state the same attributes in one order, none of which holds a graph or a tensor."""
    one, other = a.attribute, b.attribute
    if len(one) != len(other):
        return False
    return all(x.type not in HOLDING and x == y for x, y in zip(one, other, strict=True))


HOLDING = (AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.TENSOR, AttributeProto.TENSORS)


def _stated(given: Mapping[str, AttributeProto], node: Node, name: str) -> AttributeProto | None:
    """An attribute as it is stated, else its default."""
    if name in given:
        return given[name]
    if node.operator == FILL and name == "value":
        return _ZERO
    schema = signatures.schema(*node.operator, node.version)
    if schema is None or name not in schema.attributes or schema.attributes[name].required:
        return None
    default = schema.attributes[name].default_value
    return default if default.type else None


def _same(proof: Proof, a: Node, b: Node, name: str, one: AttributeProto, other: AttributeProto) -> bool:
    if one.type == other.type == AttributeProto.TENSOR:
        return _same_tensor(proof, a, b, name, one, other)
    if one.type == other.type == AttributeProto.TENSORS and one.tensors:
        pairs = zip(one.tensors, other.tensors, strict=False)
        return len(one.tensors) == len(other.tensors) and all(_exact(proof, *pair) for pair in pairs)
    return attributes.content(one) == attributes.content(other) or _is_type(proof, a, b, name)


def _same_tensor(
    proof: Proof, a: Node, b: Node, name: str, one: AttributeProto, other: AttributeProto
) -> bool:
    if a.operator != FILL or name != "value":
        return _exact(proof, one.t, other.t)
    found = stored_values.compare(Held(one.t, proof.original.folder), Held(other.t, proof.rewritten.folder))
    if not found.problem:
        proof.count(found, (a.first, b.first))
        proof.uses[Licence.TYPED] += one.t.data_type != other.t.data_type
    return not found.problem


def _exact(proof: Proof, one: Any, other: Any) -> bool:
    """Whether two tensors are the same, without a licence for what their elements are."""
    found = stored_values.compare(Held(one, proof.original.folder), Held(other, proof.rewritten.folder))
    return one.data_type == other.data_type and not found.problem and not found.uses.total()


def _is_type(proof: Proof, a: Node, b: Node, name: str) -> bool:
    """Whether an attribute does nothing but give the type of a float; the outputs are of one kind."""
    if a.operator in _FIXED or value_kinds.TYPED.get(a.operator, (None,))[0] != name:
        return False
    kinds = proof.original.kinds[a.first], proof.rewritten.kinds[b.first]
    if kinds[0] != kinds[1] or kinds[0] not in (value_kinds.FLOAT, (value_kinds.SEQUENCE, value_kinds.FLOAT)):
        return False
    proof.uses[Licence.TYPED] += 1
    return True
