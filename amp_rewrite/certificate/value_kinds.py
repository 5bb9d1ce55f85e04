"""Kinds of values, as fine as the effect of a Cast requires: float32, float16 and bfloat16 are one kind.

The kind of a tensor is its element type, FLOAT for these three; that of a container is a pair; an unknown
kind is None.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, defs, helper
from onnx.defs import OpSchema

from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.operators.catalogue import find
from amp_rewrite.operators.record import Holds, Typed

_SINGLE = OpSchema.FormalParameterOption.Single

Formal = tuple[str, bool]
"""The type or type variable of a port, and whether it is homogeneous: of one type if variadic."""


@dataclass(frozen=True, slots=True)
class KindSignature:
    """The ports of an operator, the types that each variable allows, and the number of inputs up to the last
    mandatory one.
    """

    inputs: Sequence[Formal]
    outputs: Sequence[Formal]
    types: Mapping[str, Sequence[str]]
    least: int = 0


@functools.lru_cache(1 << 12)
def find_schema(domain: str, operator: str, version: int) -> OpSchema | None:
    """Return onnx's schema of an operator at a version; None if there is none."""
    try:
        return defs.get_schema(operator, version, domain)
    except (defs.SchemaError, TypeError):  # names that are not UTF-8 are bytes, and versions unchecked
        return None


@functools.cache
def find_signature(domain: str, operator: str, version: int) -> KindSignature | None:
    """Return the signature of an operator; None if neither onnx nor onnxruntime has it."""
    schema = find_schema(domain, operator, version)
    if schema is not None:
        return KindSignature(
            [(formal.type_str, formal.is_homogeneous) for formal in schema.inputs],
            [(formal.type_str, formal.is_homogeneous) for formal in schema.outputs],
            {c.type_param_str: tuple(c.allowed_type_strs) for c in schema.type_constraints},
            max((at for at, formal in enumerate(schema.inputs, 1) if formal.option == _SINGLE), default=0),
        )
    records = _contrib_schemas().get(domain, {}).get(operator)
    return None if not records else _of_record(records[-1])


@functools.cache
def takes_floats(domain: str, operator: str, version: int, port: int) -> bool:
    """Return whether a tensor of floats may be an input of an operator; true for an unknown operator."""
    signature = find_signature(domain, operator, version)
    if signature is None or not signature.inputs:
        return True
    text, _ = signature.inputs[min(port, len(signature.inputs) - 1)]
    return FLOAT in map(_kind_of_text, signature.types.get(text, (text,)))


@functools.cache
def is_operator(domain: str, operator: str) -> bool:
    """Return whether there is an operator of that name, at any version."""
    newest = find_schema(domain, operator, defs.onnx_opset_version())
    return newest is not None or operator in _contrib_schemas().get(domain, {})


def _of_record(record: Mapping[str, Any]) -> KindSignature:
    inputs, outputs = ([(row[0], bool(row[2])) for row in record[side]] for side in ("inputs", "outputs"))
    return KindSignature(inputs, outputs, record["types"])


_TABLE = Path(__file__).parents[1] / "onnx_types" / "contrib_schemas.json"
"""Data shared with the rest of the package, but no code."""


@functools.cache
def _contrib_schemas() -> Mapping[str, Mapping[str, Sequence[Any]]]:
    return json.loads(_TABLE.read_text(encoding="utf-8"))


# ---- kinds


Kind = int | tuple[str, Any] | None

FLOAT = int(TensorProto.FLOAT)
FLOATS = frozenset((FLOAT, int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)))
"""The element types between which a Cast changes nothing but precision."""

SEQUENCE, OPTIONAL = "sequence", "optional"


def of_element(number: int) -> Kind:
    """Return the kind of a tensor of an element type; None for 0, which is undefined."""
    return FLOAT if number in FLOATS else number or None


def of_tensor(tensor: Any) -> Kind:
    """Return the kind of a stored tensor, dense or sparse."""
    return of_element(tensor.data_type if isinstance(tensor, TensorProto) else tensor.values.data_type)


def of_type(declared: TypeProto) -> Kind:
    """Return the kind of a declaration."""
    which = declared.WhichOneof("value")
    if which == "tensor_type":
        return of_element(declared.tensor_type.elem_type)
    if which == "sequence_type":
        return (SEQUENCE, of_type(declared.sequence_type.elem_type))
    if which == "optional_type":
        return (OPTIONAL, of_type(declared.optional_type.elem_type))
    return None if which is None else (which, declared.SerializeToString())


Rule = tuple[str | Holds, Any]
"""A rule for the kind of an output: `as` an input, what it holds of one, a fixed `kind`, or that of a `typed`
attribute.
"""


def find_typed(operator: tuple[str, str]) -> Typed | None:
    """Return the attribute for the type of an operator's outputs; None if it has none for all of them."""
    typed = find(*operator).typed
    return typed if typed is not None and (typed.settable or operator == BIT_CAST) else None


@functools.cache
def rules(domain: str, operator: str, version: int, count: int) -> Sequence[Rule | None]:
    """Return the rules for the kinds of a number of outputs of a node."""
    if (typed := find_typed((domain, operator))) is not None:
        return [("typed", typed)] * count
    if (holds := find(domain, operator).holds) is not None:
        return [(holds, 0)] * count
    signature = find_signature(domain, operator, version)
    return [None if signature is None else _rule(signature, port) for port in range(count)]


def _rule(signature: KindSignature, port: int) -> Rule | None:
    if not signature.outputs:
        return None
    text, homogeneous = signature.outputs[min(port, len(signature.outputs) - 1)]
    if text not in signature.types:
        kind = _kind_of_text(text)
        return None if kind is None else ("kind", kind)
    if not homogeneous:
        return None
    for position, formal in enumerate(signature.inputs):
        if formal == (text, True):
            return ("as", position)
    choices = {kind for name in signature.types[text] if (kind := _kind_of_text(name)) is not None}
    return ("kind", choices.pop()) if len(choices) == 1 else None


def _kind_of_text(text: str) -> Kind:
    """Return the kind of a type in schema notation, such as `tensor(int64)` or `seq(tensor(float))`."""
    opening, _, inner = text.partition("(")
    if opening == "tensor":
        return of_element(_ELEMENTS.get(inner[:-1], 0))
    if opening == "seq":
        return (SEQUENCE, _kind_of_text(inner[:-1]))
    if opening == "optional":
        return (OPTIONAL, _kind_of_text(inner[:-1]))
    return ("map", text) if opening == "map" else None


_ELEMENTS = {name.lower(): number for name, number in TensorProto.DataType.items()}


def of_typed(element: int, operator: tuple[str, str]) -> Kind:
    """Return the kind of an output whose operator has an attribute with this element type; None for 0."""
    kind = of_element(element)
    return (SEQUENCE, kind) if find(*operator).holds is Holds.EMPTY else kind


def stated_element(attribute: AttributeProto) -> int:
    """Return the element type that an attribute of find_typed gives, by its number or name, or by a tensor of
    it; 0 for anything else.
    """
    if attribute.type == AttributeProto.TENSOR:
        return attribute.t.data_type
    if attribute.type == AttributeProto.STRING:
        return by_name(attribute.s.decode(errors="replace"))
    return attribute.i if attribute.type == AttributeProto.INT else 0


def by_name(name: str) -> int:
    """Return an element type by its name, as in a Cast before opset 6; 0 if there is none."""
    return int(_ELEMENTS.get(name.lower(), 0))


@functools.lru_cache(1 << 12)
def plain(operator: tuple[str, str], version: int, count: int, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """Return the kinds of a node's outputs as determined by those of its inputs; None for undetermined ones.

    Raises ModelError for a node that lacks mandatory inputs.
    """
    signature = find_signature(*operator, version)
    if signature is not None and len(kinds) < signature.least:
        raise ModelError(f"has {operator[1]} without all of its inputs", remedy=EXPORT_AGAIN)
    return tuple([_apply(rule, kinds) for rule in rules(*operator, version, count)])


def _apply(rule: Rule | None, kinds: Sequence[Kind]) -> Kind:
    if rule is None or rule[0] == "typed":
        return None
    what, which = rule
    if what == "kind":
        return which
    kind = kinds[which] if which < len(kinds) else None
    if kind is None or what in ("as", Holds.SAME):
        return kind
    if what in (Holds.SEQUENCE, Holds.OPTIONAL):
        return (SEQUENCE if what is Holds.SEQUENCE else OPTIONAL, kind)
    if what is Holds.CONTENT and not (isinstance(kind, tuple) and kind[0] == OPTIONAL):
        return kind
    return kind[1] if isinstance(kind, tuple) else None


# ---- CastLike


CAST, CAST_LIKE, BIT_CAST = ("", "Cast"), ("", "CastLike"), ("", "BitCast")


def as_cast(proto: Any, likes: Sequence[Kind]) -> NodeProto | None:
    """Return the Cast that is equivalent to a CastLike, from the kinds of the inputs after its first; None
    unless there is one, a tensor of known type.
    """
    like = likes[0] if len(likes) == 1 else None
    if not isinstance(like, int):
        return None
    cast = NodeProto()
    cast.CopyFrom(proto)  # including names that are not UTF-8
    cast.op_type = "Cast"
    del cast.input[1:], cast.attribute[:]
    cast.attribute.extend(attribute for attribute in proto.attribute if attribute.name != "to")
    cast.attribute.append(helper.make_attribute("to", like))
    return cast
