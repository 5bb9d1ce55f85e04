"""Schemas of onnxruntime's own operators: from onnxruntime where it is installed, and from a stored table.

The table `contrib_schemas.json` is written by `python -m amp_rewrite.onnx_types.contrib_schemas`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx

from amp_rewrite.process import fork_safe

Record = Mapping[str, Any]
"""One version of an operator: `since`, `inputs`, `outputs` (rows of type, option, homogeneous), `types`."""

CONTRIB = "com.microsoft"

_TABLE = Path(__file__).with_name("contrib_schemas.json")


@functools.cache
def records() -> Mapping[tuple[str, str], tuple[Record, ...]]:
    """Versions of every operator that onnxruntime adds, oldest first, by (domain, operator).

    What is installed may be older than the table: of the operators that both know, it has the say.
    """
    return {**stored(), **from_onnxruntime()}


def stored() -> Mapping[tuple[str, str], tuple[Record, ...]]:
    """The schemas that are stored with the package, by domain and name."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    return {
        (domain, name): tuple(versions)
        for domain, operators in table.items()
        for name, versions in operators.items()
    }


def from_onnxruntime() -> Mapping[tuple[str, str], tuple[Record, ...]]:
    """The schemas of the installed onnxruntime, by domain and name; none without it."""
    try:
        state = fork_safe.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        schemas = state.get_all_operator_schema()
    except (ImportError, AttributeError, OSError):
        return {}
    found: dict[tuple[str, str], list[Record]] = {}
    for schema in sorted(schemas, key=lambda s: (s.domain, s.name, s.since_version)):
        if schema.domain == CONTRIB or (schema.domain == "" and not _in_onnx(schema.name)):
            found.setdefault((schema.domain, schema.name), []).append(_record(schema))
    return {key: tuple(versions) for key, versions in found.items()}


@functools.cache
def _in_onnx(name: str) -> bool:
    return onnx.defs.has(name)


def _record(schema: Any) -> Record:
    return {
        "since": schema.since_version,
        "inputs": _formals(schema.inputs),
        "outputs": _formals(schema.outputs),
        "types": {
            c.type_param_str: sorted(c.allowed_type_strs)
            for c in sorted(schema.type_constraints, key=lambda c: c.type_param_str)
        },
    }


def _formals(parameters: Iterable[Any]) -> list[list[Any]]:
    return [[p.typeStr, p.option.name, p.isHomogeneous] for p in parameters]


def table() -> str:
    """The stored table's text, from the onnxruntime that is installed."""
    found: dict[str, dict[str, Any]] = {}
    for (domain, name), versions in from_onnxruntime().items():
        found.setdefault(domain, {})[name] = versions
    return json.dumps(found, indent=None, separators=(",", ":"), sort_keys=True) + "\n"


if __name__ == "__main__":
    _TABLE.write_text(table(), encoding="utf-8")
