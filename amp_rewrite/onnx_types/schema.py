"""Operator schemas: the ports of a node that share a type variable, and its permitted types."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from amp_rewrite.numerics.half import BFLOAT16, Half
from amp_rewrite.operators import catalogue
from amp_rewrite.operators.record import Typed

# Operators with an attribute for the output element type, such as `to` of Cast.

OPERATORS = catalogue.names(lambda each: each.typed)
"""The operators that have such an attribute."""

FIRST_TYPED_CAST = 6
"""The first opset whose Cast names its type by a number; runtimes have no kernels for earlier ones."""

_FIRST_BFLOAT16_CAST = 13
"""The first opset whose operators accept bfloat16 (Cast, MatMul, Add and others, ONNX 1.8)."""


def first_opset_with(half: Half) -> int:
    """Return the first opset whose Cast supports a half type."""
    return _FIRST_BFLOAT16_CAST if half is BFLOAT16 else FIRST_TYPED_CAST


def of(node: ir.Node) -> Typed | None:
    """Return the attribute of this node that determines a type, and its type variable; None without one."""
    return catalogue.find(node.domain, node.op_type).typed


def declared(node: ir.Node, typed: Typed) -> ir.DataType | None:
    """Return the type in the node's attribute; None if the attribute is absent or invalid."""
    attribute = node.attributes.get(typed.attribute)
    if attribute is None or attribute.is_ref():
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.value.dtype
    if attribute.type == ir.AttributeType.STRING:  # a Cast before FIRST_TYPED_CAST
        return ir.DataType.__members__.get(attribute.as_string())
    try:
        return ir.DataType(int(attribute.value)) or None  # 0 is UNDEFINED
    except ValueError:
        return None


def of_constant(node: ir.Node) -> ir.DataType | None:
    """Return the element type of a Constant node's output, for any of its value attributes."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.TENSOR:
            return None if attribute.is_ref() else attribute.value.dtype
        if attribute.name in _CONSTANTS:
            return _CONSTANTS[attribute.name]
    return None


_CONSTANTS = {
    "value_float": ir.DataType.FLOAT,
    "value_floats": ir.DataType.FLOAT,
    "value_int": ir.DataType.INT64,
    "value_ints": ir.DataType.INT64,
    "value_string": ir.DataType.STRING,
    "value_strings": ir.DataType.STRING,
}


# Attribute values of a node; the default for one of another type, and for a reference to a function's.


def _attribute_value(node: ir.Node, name: str, kind: ir.AttributeType, default: Any) -> Any:
    attribute = node.attributes.get(name)
    is_said = attribute is not None and not attribute.is_ref() and attribute.type == kind
    return attribute.value if attribute is not None and is_said else default


def integer(node: ir.Node, name: str, default: int = 0) -> int:
    """Return an integer attribute."""
    return _attribute_value(node, name, ir.AttributeType.INT, default)


def integers(node: ir.Node, name: str) -> Sequence[int]:
    """Return an attribute with a list of integers; empty without one."""
    return _attribute_value(node, name, ir.AttributeType.INTS, ())


def number(node: ir.Node, name: str, default: float) -> float:
    """Return a float attribute."""
    return _attribute_value(node, name, ir.AttributeType.FLOAT, default)


def numbers(node: ir.Node, name: str) -> Sequence[float]:
    """Return an attribute with a list of floats; empty without one."""
    return _attribute_value(node, name, ir.AttributeType.FLOATS, ())


def text(node: ir.Node, name: str, default: str = "") -> str:
    """Return a string attribute."""
    return _attribute_value(node, name, ir.AttributeType.STRING, default)


def texts(node: ir.Node, name: str) -> Sequence[str]:
    """Return an attribute with a list of strings; empty without one."""
    return _attribute_value(node, name, ir.AttributeType.STRINGS, ())


@dataclass(frozen=True, slots=True)
class TypeVar:
    """A type variable of a schema; `index` is the position within a heterogeneous variadic parameter.

    For a port with a fixed type, the name is that type, such as `tensor(float)`.
    """

    name: str
    index: int | None = None

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"

    @property
    def is_fixed(self) -> bool:
        """Whether the schema fixes the type of the port."""
        return self.name.startswith("tensor(")


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal parameter: its type variable or fixed type, and whether it is variadic and homogeneous."""

    type: str
    variadic: bool
    homogeneous: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of an operator, and the permitted types of each type variable.

    `since` is the opset version that introduced this signature. `body` are the operators of the function by
    which ONNX defines the operator: empty if there is none, or if it depends on the node (`depends_on_node`).
    """

    since: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    allowed: Mapping[str, frozenset[str]]
    body: frozenset[tuple[str, str]] = frozenset()
    depends_on_node: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The ports of a node that share a type variable, and its permitted types."""

    var: TypeVar
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    allowed: frozenset[str]


Layout = tuple[Group, ...]


@functools.cache
def layout(domain: str, operator: str, version: int, inputs: int, outputs: int) -> Layout | None:
    """Return the groups of a node with these numbers of input and output ports, in order of appearance.

    None if the operator is unknown, or the node has more ports than its schema.
    """
    signature = find(domain, operator, version)
    if signature is None:
        return None
    of_inputs = _variables(signature.inputs, inputs)
    of_outputs = _variables(signature.outputs, outputs)
    if of_inputs is None or of_outputs is None:
        return None
    ports: dict[TypeVar, tuple[list[int], list[int]]] = {}  # a Loop can have a hundred thousand variables
    for side, variables in enumerate((of_inputs, of_outputs)):
        for port, var in enumerate(variables):
            ports.setdefault(var, ([], []))[side].append(port)
    return tuple(
        Group(var, tuple(ins), tuple(outs), signature.allowed.get(var.name, frozenset([var.name])))
        for var, (ins, outs) in ports.items()
    )


def _variables(formals: tuple[Formal, ...], count: int) -> tuple[TypeVar, ...] | None:
    variables = [TypeVar(f.type) for f in formals if not f.variadic][:count]
    missing = count - len(variables)
    if not missing:
        return tuple(variables)
    if not formals or not formals[-1].variadic:
        return None
    rest = formals[-1]
    indices = [None if rest.homogeneous else i for i in range(missing)]
    return (*variables, *(TypeVar(rest.type, i) for i in indices))


@functools.cache
def find(domain: str, operator: str, version: int) -> Signature | None:
    """Return the signature of an operator at the version that a model imports; None if it is unknown."""
    schema = of_onnx(domain, operator, version)
    return _of_contrib(domain, operator, version) if schema is None else _signature(schema)


def of_onnx(domain: str, operator: str, version: int) -> OpSchema | None:
    """Return onnx's schema of an operator at the version that a model imports; None if onnx has none."""
    try:
        return onnx.defs.get_schema(operator, max(-1, min(version, _NEWEST)), domain)
    except onnx.defs.SchemaError:
        return None


_NEWEST = 2**31 - 1
"""The largest version that onnx accepts: it stores versions in 32 bits, and models in 64."""


def _signature(schema: OpSchema) -> Signature:
    variadic = OpSchema.FormalParameterOption.Variadic
    inputs, outputs = (
        tuple(Formal(p.type_str, p.option == variadic, p.is_homogeneous) for p in parameters)
        for parameters in (schema.inputs, schema.outputs)
    )
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    any_schema: Any = schema  # onnx's stubs lack the fields about functions
    body = schema.function_body.node if any_schema.has_function else ()
    return Signature(
        since=schema.since_version,
        inputs=inputs,
        outputs=outputs,
        allowed=allowed,
        body=frozenset((node.domain, node.op_type) for node in body),
        depends_on_node=any_schema.has_context_dependent_function,
    )


CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators."""

BLOCKED = "com.microsoft.nchwc"
"""Operators on channels in blocks, float32 only, of models that onnxruntime saved as optimised for a CPU."""


@functools.cache
def _contrib_schemas() -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return the versions of onnxruntime's own operators, oldest first (tools/contrib_schemas.py), by domain
    and name.
    """
    return json.loads(Path(__file__).with_name("contrib_schemas.json").read_text(encoding="utf-8"))


def _of_contrib(domain: str, operator: str, version: int) -> Signature | None:
    versions = _contrib_schemas().get(domain, {}).get(operator, ())
    usable = [record for record in versions if record["since"] <= version] or versions[:1]
    if not usable:
        return None
    record = usable[-1]
    inputs, outputs = (
        tuple(Formal(kind, option == "Variadic", same) for kind, option, same in record[side])
        for side in ("inputs", "outputs")
    )
    return Signature(record["since"], inputs, outputs, {k: frozenset(v) for k, v in record["types"].items()})


@functools.cache
def first_with(domain: str, operator: str, variable: str, tensor: str) -> int | None:
    """Return the first version of an operator that allows a type for a type variable; None without any."""
    newest = onnx.defs.onnx_opset_version()
    signatures = ((version, find(domain, operator, version)) for version in range(1, newest + 1))
    return next((v for v, found in signatures if found and tensor in found.allowed.get(variable, ())), None)


def written(domain: str, op_type: str) -> str:
    """Return an operator as in operator lists: `Add`, or `com.microsoft:BiasGelu`."""
    return f"{domain}:{op_type}" if domain else op_type


def parse(text: str) -> tuple[str, str]:
    """Return the domain and the name of an operator from the form of `written`."""
    domain, _, name = text.rpartition(":")
    return canonical(domain), name


def canonical(domain: str) -> str:
    """Return a domain; the empty string for ONNX's own, which has two names."""
    return "" if domain == "ai.onnx" else domain


@functools.cache
def known_operators(domain: str) -> frozenset[str]:
    """Return the names of all known operators of a domain, at any version; empty for an unknown domain."""
    own = (s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain)
    return frozenset((*own, *_contrib_schemas().get(domain, ())))


def is_known(domain: str, operator: str) -> bool:
    """Return whether an operator has a schema, at any version."""
    return operator in known_operators(domain)
