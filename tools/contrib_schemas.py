"""Writes the schemas of onnxruntime's own operators, as the installed onnxruntime has them, to their table.

    python tools/contrib_schemas.py

`amp_rewrite/onnx_types/contrib_schemas.json` has the versions of each operator, oldest first, by domain
and name: `since`, `inputs` and `outputs` (rows of type, option, homogeneous), and the `types` of each
type variable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx

TABLE = Path(__file__).parents[1] / "amp_rewrite" / "onnx_types" / "contrib_schemas.json"
DOMAINS = ("com.microsoft", "com.microsoft.nchwc")


def table() -> str:
    """The text of the table for the installed onnxruntime."""
    schemas = import_module("onnxruntime.capi.onnxruntime_pybind11_state").get_all_operator_schema()
    versions: dict[str, dict[str, list[Any]]] = {}
    for schema in sorted(schemas, key=lambda s: (s.domain, s.name, s.since_version)):
        if schema.domain in DOMAINS or (schema.domain == "" and not onnx.defs.has(schema.name)):
            versions.setdefault(schema.domain, {}).setdefault(schema.name, []).append(record(schema))
    return json.dumps(versions, indent=None, separators=(",", ":"), sort_keys=True) + "\n"


def record(schema: Any) -> dict[str, Any]:
    """One version of an operator."""
    return {
        "since": schema.since_version,
        "inputs": formals(schema.inputs),
        "outputs": formals(schema.outputs),
        "types": {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints},
    }


def formals(parameters: Iterable[Any]) -> list[list[Any]]:
    """The rows of inputs or outputs."""
    return [[p.typeStr, p.option.name, p.isHomogeneous] for p in parameters]


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
