"""Operator schemas: which ports of a node share a type variable, and which types it may have."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx.defs import OpSchema

from amp_rewrite.onnx_types import contrib_schemas


@dataclass(frozen=True, slots=True)
class TypeVar:
    """A type variable of a schema; `index` is the position within a heterogeneous variadic parameter.

    For a port with a fixed type, the name is that type, such as `tensor(float)`.
    """

    name: str
    index: int | None = None

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal parameter: its type variable or fixed type, and whether it is variadic and homogeneous."""

    type: str
    variadic: bool
    homogeneous: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of an operator, and the types that each type variable may have.

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
    """The ports of a node that share a type variable, and the types that it may have."""

    var: TypeVar
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    allowed: frozenset[str]


Layout = tuple[Group, ...]


@functools.cache
def layout(domain: str, operator: str, version: int, inputs: int, outputs: int) -> Layout | None:
    """The groups of a node with that many input and output ports, in order of appearance.

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
    """The signature of an operator at the version that a model imports; None if it is unknown."""
    schema = of_onnx(domain, operator, version)
    return _of_contrib(domain, operator, version) if schema is None else _signature(schema)


def of_onnx(domain: str, operator: str, version: int) -> OpSchema | None:
    """onnx's schema of an operator at the version that a model imports; None if onnx has none."""
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
    known: Any = schema  # onnx's stubs lack the fields about functions
    body = schema.function_body.node if known.has_function else ()
    return Signature(
        since=schema.since_version,
        inputs=inputs,
        outputs=outputs,
        allowed=allowed,
        body=frozenset((node.domain, node.op_type) for node in body),
        depends_on_node=known.has_context_dependent_function,
    )


def _of_contrib(domain: str, operator: str, version: int) -> Signature | None:
    versions = contrib_schemas.records().get((domain, operator), ())
    usable = [record for record in versions if record["since"] <= version] or versions[:1]
    if not usable:
        return None
    record = usable[-1]
    inputs, outputs = (
        tuple(Formal(kind, option == "Variadic", same) for kind, option, same in record[side])
        for side in ("inputs", "outputs")
    )
    return Signature(record["since"], inputs, outputs, {k: frozenset(v) for k, v in record["types"].items()})


def written(domain: str, op_type: str) -> str:
    """An operator as it is written in operator lists: `Add`, or `com.microsoft:BiasGelu`."""
    return f"{domain}:{op_type}" if domain else op_type


def parse(text: str) -> tuple[str, str]:
    """The domain and the name of an operator as `written` has it."""
    domain, _, name = text.rpartition(":")
    return canonical(domain), name


def canonical(domain: str) -> str:
    """A domain with ONNX's own, which has two names, as the empty text."""
    return "" if domain == "ai.onnx" else domain


@functools.cache
def known_operators(domain: str) -> frozenset[str]:
    """The names of all operators known in a domain, at any version; empty for an unknown domain."""
    own = (s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain)
    added = (name for contrib_domain, name in contrib_schemas.records() if contrib_domain == domain)
    return frozenset((*own, *added))
