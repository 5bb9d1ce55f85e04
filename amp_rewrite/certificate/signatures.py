"""What operators declare: by onnx's schemas, and by the stored table of onnxruntime's own."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import defs
from onnx.defs import OpSchema

_SINGLE = OpSchema.FormalParameterOption.Single

Formal = tuple[str, bool]
"""The type, or type variable, of a port, and whether all ports that it stands for have one type."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The ports of an operator, the types that each variable allows, and the number of inputs up to the last
    one that a node has to have.
    """

    inputs: Sequence[Formal]
    outputs: Sequence[Formal]
    types: Mapping[str, Sequence[str]]
    least: int = 0


def schema(domain: str, operator: str, version: int) -> OpSchema | None:
    """onnx's schema of an operator at a version; None where it knows none."""
    try:
        return defs.get_schema(operator, version, domain)
    except (defs.SchemaError, TypeError):  # a name that is not UTF-8 is bytes, a version may be any number
        return None


@functools.cache
def find(domain: str, operator: str, version: int) -> Signature | None:
    """What an operator declares; None for one that nobody knows."""
    known = schema(domain, operator, version)
    if known is not None:
        return Signature(
            [(formal.type_str, formal.is_homogeneous) for formal in known.inputs],
            [(formal.type_str, formal.is_homogeneous) for formal in known.outputs],
            {c.type_param_str: tuple(c.allowed_type_strs) for c in known.type_constraints},
            max((at for at, formal in enumerate(known.inputs, 1) if formal.option == _SINGLE), default=0),
        )
    stored = _stored().get(domain, {}).get(operator)
    return None if not stored else _of_record(stored[-1])


def names(domain: str, operator: str) -> bool:
    """Whether there is an operator of that name, of any version."""
    newest = schema(domain, operator, defs.onnx_opset_version())
    return newest is not None or operator in _stored().get(domain, {})


def _of_record(record: Mapping[str, Any]) -> Signature:
    inputs, outputs = ([(row[0], bool(row[2])) for row in record[side]] for side in ("inputs", "outputs"))
    return Signature(inputs, outputs, record["types"])


_TABLE = Path(__file__).parents[1] / "onnx_types" / "contrib_schemas.json"
"""Data, of which no code is shared."""


@functools.cache
def _stored() -> Mapping[str, Mapping[str, Sequence[Any]]]:
    return json.loads(_TABLE.read_text(encoding="utf-8"))
