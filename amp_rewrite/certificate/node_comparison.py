"""Comparison of two nodes of one operator: attributes, stated or by default, and meaning across versions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from onnx import AttributeProto, TensorProto, defs, helper
from onnx.defs import OpSchema

from amp_rewrite.certificate import rescaling, value_kinds
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.numbered import (
    MISSING,
    Node,
    attribute_content,
    attributes_of,
    has_graphs,
    without_graphs,
)
from amp_rewrite.certificate.proof import Pair, Proof
from amp_rewrite.certificate.value_kinds import find_schema
from amp_rewrite.operators import catalogue
from amp_rewrite.operators.versions import CHANGES, NEUTRAL, Spared, Unless

FILL = ("", "ConstantOfShape")
_ZERO = helper.make_attribute("value", TensorProto(dims=[1], data_type=TensorProto.FLOAT, raw_data=bytes(4)))
"""The default fill of a ConstantOfShape, which its schema omits."""

_FIXED = frozenset((value_kinds.BIT_CAST, ("", "Multinomial"), FILL))
"""Operators whose type attribute is not for floats, or holds more than the type."""


def differing_attribute(proof: Proof, a: Node, b: Node) -> str | None:
    """Return the name of the first attribute that differs, which may be empty; None if none does.

    An attribute for the type of an output may differ if the output is known to be a float in both.
    """
    if a.operator == value_kinds.BIT_CAST:
        left, right = proof.original.read(a)[0], proof.rewritten.read(b)[0]
        if not proof.has_same_type(left, right):
            return "to"
    if a.scope.bound is None is b.scope.bound and _state_the_same(a.proto, b.proto):
        if catalogue.find(*a.operator).norm is not None:
            rescaling.record(proof.changes.norms, b.first, 0)
        return None
    before, after = (without_graphs(attributes_of(node)) for node in (a, b))
    for name in sorted({*before, *after}, key=str):
        one, other = _stated(before, a, name), _stated(after, b, name)
        if one is None or other is None:
            same = one is other or _is_type(proof, a, b, name)
        else:
            same = _is_same_attribute(proof, a, b, name, one, other)
        if not same:
            return name
    return _unread_bodies(a, b)


def _unread_bodies(a: Node, b: Node) -> str | None:
    """Return the name of a graph attribute on a node whose operator has no bodies; None without one."""
    attributes = ((node, name, bound) for node in (a, b) for name, bound in attributes_of(node).items())
    return next((n for node, n, bound in attributes if not node.bodies and has_graphs(bound)), None)


def _state_the_same(a: Any, b: Any) -> bool:
    """Return whether two nodes state equal attributes in the same order, none a graph or a tensor."""
    one, other = a.attribute, b.attribute
    if len(one) != len(other):
        return False
    return all(x.type not in _HOLDING and x == y for x, y in zip(one, other, strict=True))


_HOLDING = (AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.TENSOR, AttributeProto.TENSORS)


def _stated(attributes: Mapping[str, AttributeProto], node: Node, name: str) -> AttributeProto | None:
    """Return an attribute as stated, else its default."""
    if name in attributes:
        return attributes[name]
    if node.operator == FILL and name == "value":
        return _ZERO
    schema = find_schema(*node.operator, node.version)
    if schema is None or name not in schema.attributes or schema.attributes[name].required:
        return None
    default = schema.attributes[name].default_value
    return default if default.type else None


def _is_same_attribute(
    proof: Proof, a: Node, b: Node, name: str, one: AttributeProto, other: AttributeProto
) -> bool:
    if one.type == other.type == AttributeProto.TENSOR:
        return _same_tensor(proof, a, b, name, one, other)
    if one.type == other.type == AttributeProto.TENSORS and one.tensors:
        pairs = zip(one.tensors, other.tensors, strict=False)
        return len(one.tensors) == len(other.tensors) and all(_exact(proof, *pair) for pair in pairs)
    if name == "epsilon" and catalogue.find(*a.operator).norm is not None:
        return proof.changes.is_same_epsilon(b, one, other)
    return attribute_content(one) == attribute_content(other) or _is_type(proof, a, b, name)


def _same_tensor(
    proof: Proof, a: Node, b: Node, name: str, one: AttributeProto, other: AttributeProto
) -> bool:
    if a.operator != FILL or name != "value":
        return _exact(proof, one.t, other.t)
    comparison = proof.compare(one.t, other.t)
    if not comparison.problem:
        proof.count(comparison, (a.first, b.first))
        proof.uses[Licence.TYPED] += one.t.data_type != other.t.data_type
    return not comparison.problem


def _exact(proof: Proof, one: Any, other: Any) -> bool:
    """Return whether two tensors are equal without any licence."""
    comparison = proof.compare(one, other)
    changes = comparison.problem, comparison.exponent, comparison.uses.total()
    return one.data_type == other.data_type and not any(changes)


def _is_type(proof: Proof, a: Node, b: Node, name: str) -> bool:
    """Return whether an attribute only selects the type of a float; the outputs are of one kind."""
    typed = value_kinds.find_typed(a.operator)
    if a.operator in _FIXED or typed is None or typed.attribute != name:
        return False
    kinds = proof.original.kinds[a.first], proof.rewritten.kinds[b.first]
    if kinds[0] != kinds[1] or kinds[0] not in (value_kinds.FLOAT, (value_kinds.SEQUENCE, value_kinds.FLOAT)):
        return False
    proof.uses[Licence.TYPED] += 1
    return True


# ---- custom operators without a schema, which may compute something else of another float type


def refuse_undeclared_types(proof: Proof, a: Node, b: Node) -> None:
    """Raise DifferentError for a custom operator, or a node in a body of one, that reads a type that it did
    not read, unless that is declared for all its floats.
    """
    custom = proof.rewritten.op_types.get(a.operator)
    if custom is None and not b.scope.is_custom and value_kinds.is_operator(*a.operator):
        return
    pairs = enumerate(zip(proof.original.read(a), proof.rewritten.read(b), strict=False))
    changes = [port for port, pair in pairs if not proof.has_same_type(*pair)]
    if not changes:
        told = proof.original.told.intersection(range(a.first, a.first + a.count))
        proof.uses[Licence.DECLARED] += bool(told)
        return
    types = [proof.types_after.of(number) for number in proof.rewritten.read(b)]
    change = f"it reads {_type_name(types[changes[0]])} at input {changes[0]}"
    if custom is None:
        raise DifferentError(f"{change}, and no types are declared for the operator")
    variable = {types[port] for port in proof.rewritten.variable_ports(b)}
    if len(variable) > 1 or not variable <= custom.floats or not custom.ports.keys().isdisjoint(changes):
        raise DifferentError(f"{change}, and other types are declared for the operator")
    proof.uses[Licence.DECLARED] += 1


def refuse_other_types(proof: Proof, pairs: Iterable[Pair]) -> None:
    """Raise DifferentError for a value of another type that enters or leaves a body of a custom operator."""
    for left, right in pairs:
        if not proof.has_same_type(proof.original.computed(left), proof.rewritten.computed(right)):
            raise DifferentError("it has another type in a body of a custom operator", (left, right, ""))


def _type_name(element: int) -> str:
    return TensorProto.DataType.Name(element).lower() if element > 0 else "an unknown type"


# ---- versions of operators


RankOf = Callable[[int], "int | None"]


def means_same(node: Node, other: int, rank_of: RankOf) -> bool:
    """Return whether a node has the same meaning at version `other` of its domain as at its own."""
    if max(node.version, other) > _NEWEST.get(node.operator[0], sys.maxsize):
        return False
    before = find_schema(*node.operator, node.version)
    after = find_schema(*node.operator, other)
    if before is None or after is None:
        return before is after and not node.operator[0]  # one of onnxruntime's, with a schema of its own
    if before.since_version == after.since_version:
        return True
    if after.since_version < before.since_version:
        before, after = after, before
    attributes = {name: bound.attribute for name, bound in attributes_of(node).items()}
    return (
        not after.deprecated
        and _same_ports(before, after, node)
        and _same_attributes(before, after, attributes)
        and _means_same(before, after, node, attributes, rank_of)
    )


_NEWEST = {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}
"""The newest supported versions; the meaning of operators at later ones is unknown."""

_VARIADIC = OpSchema.FormalParameterOption.Variadic
_SINGLE = OpSchema.FormalParameterOption.Single


def _same_ports(before: OpSchema, after: OpSchema, node: Node) -> bool:
    """Return whether both versions have the ports that a node uses, and no mandatory one is omitted."""
    for formals, used in (
        (before.inputs, len(node.inputs)),
        (after.inputs, len(node.inputs)),
        (before.outputs, node.count),
        (after.outputs, node.count),
    ):
        if used > len(formals) and not (formals and formals[-1].option == _VARIADIC):
            return False
    mandatory = [i for x in (before, after) for i, formal in enumerate(x.inputs) if formal.option == _SINGLE]
    if any(i >= len(node.inputs) or node.inputs[i] == MISSING for i in mandatory):
        return False
    came = {formal.name for formal in after.inputs[len(before.inputs) :]}
    return came <= NEUTRAL.get(node.operator[1], frozenset())


def _same_attributes(before: OpSchema, after: OpSchema, names: Collection[str]) -> bool:
    """Return whether both versions have the stated attributes, and the same or irrelevant other defaults."""
    old, new = before.attributes, after.attributes
    indifferent = NEUTRAL.get(before.name, frozenset())
    for name in {*old, *new}:
        both = name in old and name in new
        if name in names:
            if not both or old[name].type != new[name].type:
                return False
        elif name not in indifferent and not (both and _default(old[name]) == _default(new[name])):
            return False
    return not any(attribute.required and name not in names for name, attribute in new.items())


def _default(attribute: OpSchema.Attribute) -> bytes:
    return attribute.default_value.SerializeToString()


_Stated = Mapping[str, AttributeProto]


def _means_same(before: OpSchema, after: OpSchema, node: Node, attributes: _Stated, rank_of: RankOf) -> bool:
    changes = CHANGES.get(node.operator[1], ())
    exemptions = (
        change.spares for change in changes if before.since_version < change.since <= after.since_version
    )
    return all(_is_spared(exemption, node, attributes, rank_of) for exemption in exemptions)


def _is_spared(exemption: Unless | Spared, node: Node, attributes: _Stated, rank_of: RankOf) -> bool:
    """Return whether a change of its operator leaves the meaning of a node unchanged."""
    if isinstance(exemption, Unless):
        attribute = attributes.get(exemption.attribute)
        return attribute is None or _value(attribute) in exemption.values
    if exemption is Spared.WITH_PARTS:
        return len(node.inputs) > 1
    if exemption is Spared.WITH_ONE_OUTPUT:
        return node.count == 1
    if exemption is not Spared.OF_LAST_AXIS or ("axis" in attributes and attributes["axis"].i == -1):
        return exemption is Spared.OF_LAST_AXIS
    axis, rank = attributes["axis"].i if "axis" in attributes else 1, rank_of(node.inputs[0])
    return rank is not None and axis == rank - 1


def _value(attribute: AttributeProto) -> object:
    """Return an integer or a string."""
    return attribute.i if attribute.type == AttributeProto.INT else attribute.s.decode(errors="replace")
