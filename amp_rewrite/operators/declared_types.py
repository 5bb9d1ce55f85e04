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

from onnx import TensorProto

KEY = "amp_rewrite.op_types"
"""The metadata key of a model under which the declarations for its operators are stored, as JSON."""


@dataclass(frozen=True, slots=True)
class DeclaredTypes:
    """A declaration: the element types of float ports, and those of single ports; ~0 is the first output."""

    floats: frozenset[int]
    ports: Mapping[int, int]


@functools.lru_cache(256)
def parse(text: str) -> DeclaredTypes:
    """Return the declaration that a text makes; ValueError for any other text."""
    floats, ports = set[int](), dict[int, int]()
    for part in map(str.strip, text.split(",")):
        match = _PART.fullmatch(part)
        side, position, name = match.groups() if match else (None, "", "")
        if name not in (_FLOATS if side is None else _OF_PORTS):
            raise ValueError(f"'{part}' is neither a type nor a port with its type: {_EXAMPLES}")
        if side is None:
            floats |= {_FLOAT, *_FLOATS[name]}
        else:
            ports[int(position) if side == "IN" else ~int(position)] = _OF_PORTS[name]
    if not floats:
        raise ValueError("the type of the other ports is missing: add float16, or float32")
    return DeclaredTypes(frozenset(floats), ports)


_PART = re.compile(r"(?:(IN|OUT)(\d{1,6}):)?(\w+)")
_EXAMPLES = "float16, bfloat16, half, float32, IN1:float32, OUT0:int64"
_FLOAT, _DOUBLE = int(TensorProto.FLOAT), int(TensorProto.DOUBLE)
_HALVES = {"float16": int(TensorProto.FLOAT16), "bfloat16": int(TensorProto.BFLOAT16)}
_FLOATS = {"float32": [], "half": [*_HALVES.values()], **{name: [half] for name, half in _HALVES.items()}}
_OF_PORTS = {"float32": _FLOAT, "float64": _DOUBLE} | {
    name.lower(): number
    for name, number in TensorProto.DataType.items()
    if number not in (TensorProto.UNDEFINED, _FLOAT, _DOUBLE, *_HALVES.values())
}


OpTypes = Mapping[tuple[str, str], DeclaredTypes]
"""Declarations by domain and name of their operators; ONNX's default domain is the empty text."""


def by_operator(texts: Mapping[str, str]) -> OpTypes:
    """Return declarations by their operators; ValueError for an invalid one, which it names."""
    declared: dict[tuple[str, str], DeclaredTypes] = {}
    for operator, text in texts.items():
        domain, _, name = str(operator).rpartition(":")
        try:
            declared["" if domain == "ai.onnx" else domain, name] = parse(str(text))
        except ValueError as error:
            raise ValueError(f"`Options.op_types` {operator}={text}: {error}") from error
    return declared


def recorded(metadata: Mapping[str, str], has_schema: Callable[[str, str], bool]) -> dict[str, str]:
    """Return the declarations in the metadata of a model; none if one is damaged or of a known operator."""
    try:
        texts = dict[str, str](json.loads(metadata.get(KEY, "{}")))
        is_sound = not any(has_schema(*operator) for operator in by_operator(texts))
    except (ValueError, TypeError, RecursionError):
        return {}
    return texts if is_sound else {}
