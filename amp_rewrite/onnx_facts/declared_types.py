"""The types that kernels of custom operators take, as their users declare them: `float16,IN1:float32`.

No schema has them. All float inputs and outputs of a node have one type, float32 or another that is declared,
but for ports with a type of their own.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onnx import TensorProto

KEY = "amp_rewrite.op_types"
"""The metadata key of a model under which the declarations for its operators are stored, as JSON."""

EXAMPLE = "autoware:Op=float16"


@dataclass(frozen=True, slots=True)
class DeclaredTypes:
    """A declaration: the element types of float ports, and those of single ports; ~0 is the first output."""

    floats: frozenset[int]
    ports: Mapping[int, int]


@functools.cache
def parse(text: str) -> DeclaredTypes:
    """Return the declaration that a text makes; ValueError for any other text."""
    floats, ports = {int(TensorProto.FLOAT)}, dict[int, int]()
    is_of_all = False
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        side, position, name = match.groups() if match else (None, "", "")
        if name not in (_FLOATS if side is None else _ELEMENTS):
            raise ValueError(f"'{part.strip()}' is neither a type nor a port with its type: {_EXAMPLES}")
        if side is None:
            floats.update(_FLOATS[name])
            is_of_all = True
        else:
            ports[int(position) if side == "IN" else ~int(position)] = _ELEMENTS[name]
    if not is_of_all:
        raise ValueError("the type of the other ports is missing: add float16, or float32")
    return DeclaredTypes(frozenset(floats), ports)


_PART = re.compile(r"(?:(IN|OUT)(\d{1,6}):)?(\w+)")
_EXAMPLES = "float16, bfloat16, half, float32, IN1:float32, OUT0:int64"
_LONG = {"float32": int(TensorProto.FLOAT), "float64": int(TensorProto.DOUBLE)}
_HALVES = {name.lower(): int(TensorProto.DataType.Value(name)) for name in ("FLOAT16", "BFLOAT16")}
_FLOATS = {"float32": [], "half": [*_HALVES.values()], **{name: [half] for name, half in _HALVES.items()}}
_ELEMENTS = _LONG | {
    name.lower(): number
    for name, number in TensorProto.DataType.items()
    if name.lower() not in (*_HALVES, "undefined", "float", "double")
}


Operator = tuple[str, str]
"""Domain and name; ONNX's default domain is the empty text."""

OpTypes = Mapping[Operator, DeclaredTypes]
NONE_DECLARED: OpTypes = MappingProxyType({})


def by_operator(texts: Mapping[str, str]) -> dict[Operator, DeclaredTypes]:
    """Return declarations by domain and name of their operators; ValueError for an invalid one."""
    return {_operator(written): parse(text) for written, text in texts.items()}


def _operator(written: str) -> Operator:
    domain, _, name = written.rpartition(":")
    return "" if domain == "ai.onnx" else domain, name


def recorded(metadata: Mapping[str, str], has_schema: Callable[[str, str], bool]) -> dict[str, str]:
    """Return the declarations in the metadata of a model, by operator; none where they are damaged, nor for
    an operator that has a schema.
    """
    try:
        content = dict[str, str](json.loads(metadata.get(KEY, "{}")))
        operators = {written: key for written in content for key in by_operator({written: content[written]})}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {written: content[written] for written, key in operators.items() if not has_schema(*key)}
