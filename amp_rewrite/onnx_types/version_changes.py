"""Comparison of the semantics of an unchanged node at two versions of ONNX.

The schemas of both versions are compared as far as the node uses them; changes that they do not show are in
`operators.versions`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import onnx_ir as ir
from onnx.defs import OpSchema

from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import Types, schema_text
from amp_rewrite.operators.versions import CHANGES, NEUTRAL, Spared, Unless

RankOf = Callable[[ir.Value], "int | None"]
"""The rank of a value; None where it is unknown."""

OLDEST = 7
"""The oldest version that is compared: before 7, operators broadcast by other rules, and Cast names its type
by a string (onnx/version_converter/adapters: broadcast_forward_compatibility.h, cast attributes of 5 -> 6).
"""


def same(node: ir.Node, old: int, new: int, types: Types, rank_of: RankOf) -> bool:
    """Return whether an unchanged node of the default domain has the same semantics at opset `new`, newer or
    older, as at `old`.

    Only types may have been added, and features without effect on nodes that do not use them. A node that
    onnx does not know has the same semantics at all such versions: its runtime has a schema of its own.
    """
    low, high = sorted((old, new))
    if low < OLDEST:
        return old == new
    usage = _usage(node, types)
    ways = {(low, high), (old, new)}  # what is older must also accept what a newer version may leave out
    if not all(_interface_kept(node.op_type, *way, usage) for way in ways):
        return False
    changes = CHANGES.get(node.op_type, ())
    return all(_spares(change.spares, node, rank_of) for change in changes if low < change.since <= high)


def _spares(spared: Unless | Spared, node: ir.Node, rank_of: RankOf) -> bool:
    """Return whether a change does not affect a node."""
    if isinstance(spared, Unless):
        attribute = node.attributes.get(spared.attribute)
        return attribute is None or (not attribute.is_ref() and attribute.value in spared.values)
    if spared is Spared.WITH_PARTS:
        return len(node.inputs) > 1 and node.inputs[1] is not None
    if spared is Spared.WITH_ONE_OUTPUT:
        return not any(value.name for value in node.outputs[1:])
    return spared is Spared.OF_LAST_AXIS and _normalises_last_axis(node, rank_of)


def _normalises_last_axis(node: ir.Node, rank_of: RankOf) -> bool:
    stated = node.attributes.get("axis")
    if stated is not None and (stated.is_ref() or stated.type != ir.AttributeType.INT):
        return False
    axis = 1 if stated is None else stated.as_int()
    value = node.inputs[0] if node.inputs else None
    rank = rank_of(value) if value is not None else None
    return (axis == -1 and stated is not None) or (rank is not None and axis == rank - 1)


class _Usage(NamedTuple):
    """The parts of a schema that a node uses: the types of its inputs and outputs, and its attributes.

    An omitted port is None; one of an unknown type, or no tensor, is the empty string.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    attributes: frozenset[str]


def _usage(node: ir.Node, types: Types) -> _Usage:
    inputs = tuple(None if value is None else _type(value, types) for value in node.inputs)
    outputs = tuple(_type(value, types) if value.name else None for value in node.outputs)
    return _Usage(inputs, outputs, frozenset(node.attributes))


def _type(value: ir.Value, types: Types) -> str:
    value_type = types.get(value)
    return schema_text(value_type.dtype) if isinstance(value_type, ir.TensorType) else ""


Formals = Sequence[OpSchema.FormalParameter]


@functools.cache
def _interface_kept(operator: str, old: int, new: int, usage: _Usage) -> bool:
    before, after = schema.of_onnx("", operator, old), schema.of_onnx("", operator, new)
    if before is None or after is None:
        return before is None and after is None and bool(schema.find("", operator, new))
    if before.since_version == after.since_version:
        return True
    if after.deprecated:
        return False
    neutral = NEUTRAL.get(operator, frozenset())
    ports = _ports_kept(before, after, usage, neutral) and _variables_kept(before, after, usage)
    return ports and _attributes_kept(before, after, usage.attributes, neutral)


def _ports_kept(before: OpSchema, after: OpSchema, usage: _Usage, neutral: frozenset[str]) -> bool:
    """Return whether each port in use exists in both, of the same kind, and accepts its actual type."""
    for side, used in (("inputs", usage.inputs), ("outputs", usage.outputs)):
        formals = getattr(before, side), getattr(after, side)
        for position, kind in enumerate(used):
            old, new = (_formal(those, position) for those in formals)
            if kind is not None and not _port_kept(old, new, before, after, kind):
                return False
        more = formals[1][len(formals[0]) :]
        if side == "inputs" and any(formal.name not in neutral for formal in more):
            return False
    return _enough_inputs(after, usage.inputs)


def _formal(formals: Formals, position: int) -> OpSchema.FormalParameter | None:
    if position < len(formals):
        return formals[position]
    is_variadic = bool(formals) and formals[-1].option == OpSchema.FormalParameterOption.Variadic
    return formals[-1] if is_variadic else None


def _port_kept(
    old: OpSchema.FormalParameter | None,
    new: OpSchema.FormalParameter | None,
    before: OpSchema,
    after: OpSchema,
    kind: str,
) -> bool:
    if old is None or new is None:
        return False
    variadic = OpSchema.FormalParameterOption.Variadic
    alike = (old.option == variadic) == (new.option == variadic) and old.is_homogeneous == new.is_homogeneous
    allowed = _types(new, after)
    return alike and (kind in allowed if kind else _types(old, before) <= allowed)


def _types(formal: OpSchema.FormalParameter, of: OpSchema) -> frozenset[str]:
    for constraint in of.type_constraints:
        if constraint.type_param_str == formal.type_str:
            return frozenset(constraint.allowed_type_strs)
    return frozenset([formal.type_str])


def _enough_inputs(after: OpSchema, used: tuple[str | None, ...]) -> bool:
    """Return whether no required input of the newer schema is omitted."""
    single = OpSchema.FormalParameterOption.Single
    required_ports = [i for i, formal in enumerate(after.inputs) if formal.option == single]
    return all(i < len(used) and used[i] is not None for i in required_ports)


def _variables_kept(before: OpSchema, after: OpSchema, usage: _Usage) -> bool:
    """Return whether type variables bind the ports in use as before.

    Inputs that share a variable must have shared one before, or be of one type, and each output must share
    its variable with an input as before.
    """
    inputs = _variables(before.inputs, after.inputs, usage.inputs)
    outputs = _variables(before.outputs, after.outputs, usage.outputs)
    old, new = {was for was, _ in inputs}, {now for _, now in inputs}
    kinds = {(_variable(after.inputs, i), kind) for i, kind in enumerate(usage.inputs) if kind is not None}
    is_joined = len(inputs) > len(new) and (len(kinds) > len(new) or "" in usage.inputs)
    bound = all(pair in inputs or (pair[0] not in old and pair[1] not in new) for pair in outputs)
    return bound and not is_joined


def _variables(
    before: Formals, after: Formals, used: tuple[str | None, ...]
) -> set[tuple[str | None, str | None]]:
    """Return the variables, or fixed types, of the ports in use, before and after."""
    ports = [position for position, kind in enumerate(used) if kind is not None]
    return {(_variable(before, position), _variable(after, position)) for position in ports}


def _variable(formals: Formals, position: int) -> str | None:
    formal = _formal(formals, position)
    if formal is None:
        return None
    return formal.type_str if formal.is_homogeneous else f"{formal.type_str}[{position}]"


def _attributes_kept(
    before: OpSchema, after: OpSchema, stated: frozenset[str], neutral: frozenset[str]
) -> bool:
    """Return whether each attribute has one type and default in both, or is neutral and not stated."""
    old, new = before.attributes, after.attributes
    removals, additions = old.keys() - new.keys(), new.keys() - old.keys()
    if any(name in stated or name not in neutral for name in removals):
        return False
    if any(name in stated or new[name].required or name not in neutral for name in additions):
        return False
    both = old.keys() & new.keys()
    return all(
        old[name].type == new[name].type and (name in stated | neutral or _absent_alike(old[name], new[name]))
        for name in both
    )


def _absent_alike(old: OpSchema.Attribute, new: OpSchema.Attribute) -> bool:
    """Return whether a node without an attribute has the same default in both."""
    defaults = [each.default_value.SerializeToString() for each in (old, new)]
    return defaults[0] == defaults[1] and not new.required
