"""Schemas of onnxruntime's own operators: from onnxruntime where it is installed, and from a stored table.

`python -m amp_rewrite.onnx_types.contrib_schemas` writes the table, `contrib_schemas.json`.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx

OperatorVersion = Mapping[str, Any]
"""One version of an operator: `since`, `inputs`, `outputs` (rows of type, option, homogeneous), `types`."""

OperatorVersions = Mapping[tuple[str, str], tuple[OperatorVersion, ...]]
"""The versions of each operator, oldest first, by (domain, operator)."""

CONTRIB = "com.microsoft"

BLOCKED = "com.microsoft.nchwc"
"""Operators on channels in blocks, float32 only, of models that onnxruntime saved as optimised for a CPU."""

_TABLE = Path(__file__).with_name("contrib_schemas.json")


@functools.cache
def records() -> OperatorVersions:
    """Return every operator that onnxruntime adds to ONNX.

    The installed version takes precedence, but may be older than the table and lack some of its operators.
    """
    return {**stored(), **installed()}


def stored() -> OperatorVersions:
    """Return the operators in the stored table."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    return {
        (domain, name): tuple(versions)
        for domain, operators in table.items()
        for name, versions in operators.items()
    }


def installed() -> OperatorVersions:
    """Return the operators of the installed onnxruntime; none if it is missing or broken."""
    try:
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        schemas = state.get_all_operator_schema()
    except (ImportError, AttributeError, OSError):
        return {}
    versions_by_operator: dict[tuple[str, str], list[OperatorVersion]] = {}
    for schema in sorted(schemas, key=lambda s: (s.domain, s.name, s.since_version)):
        if schema.domain in (CONTRIB, BLOCKED) or (schema.domain == "" and not onnx.defs.has(schema.name)):
            versions_by_operator.setdefault((schema.domain, schema.name), []).append(_record(schema))
    return {key: tuple(versions) for key, versions in versions_by_operator.items()}


def _record(schema: Any) -> OperatorVersion:
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
    """Return the text of the table for the installed onnxruntime."""
    versions_by_domain: dict[str, dict[str, Any]] = {}
    for (domain, name), versions in installed().items():
        versions_by_domain.setdefault(domain, {})[name] = versions
    return json.dumps(versions_by_domain, indent=None, separators=(",", ":"), sort_keys=True) + "\n"


if __name__ == "__main__":
    _TABLE.write_text(table(), encoding="utf-8")
