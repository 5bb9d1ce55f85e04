"""Whether a newer opset would let a node be half that its schema keeps in float32."""

from __future__ import annotations

from amp_rewrite.analysis.units import Unit, UnitGraph
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Authority

NEWEST = 24
"""The newest opset that is looked at: by a newer one, no operator gains a half type."""


def remedy(cause: RootCause, graph: UnitGraph, half: Half) -> str:
    """That nothing helps at the opset of the model, and which opset would; empty where none does, and where
    it is not the schema that keeps the nodes in float32.
    """
    if cause.first.entry.authority is not Authority.SCHEMA:
        return ""
    unit, imported = graph.units[cause.roots[0]], graph.root.opset_imports
    opset = imported.get("", imported.get("ai.onnx"))
    first = None if unit.node.domain or opset is None else _first_with(unit, opset, half)
    return "" if first is None else f"nothing at opset {opset}: the schema has {half.name} from {first} on"


def _first_with(unit: Unit, opset: int, half: Half) -> int | None:
    newer = range(opset + 1, NEWEST + 1)
    return next((version for version in newer if half.tensor in _allowed(unit, version)), None)


def _allowed(unit: Unit, version: int) -> frozenset[str]:
    """The types that the schema of an opset lets the variable of a unit take."""
    node = unit.node
    groups = schema.layout(node.domain, node.op_type, version, len(node.inputs), len(node.outputs)) or ()
    return next((group.allowed for group in groups if group.var == unit.var), frozenset())
