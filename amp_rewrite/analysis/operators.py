"""The operator whose arithmetic a node performs, where an attribute determines it."""

from __future__ import annotations

import onnx_ir as ir


def effective_op(node: ir.Node) -> str:
    """Return the operator whose arithmetic a node performs: Add for a scatter that adds, else its own."""
    reduction = node.attributes.get("reduction") if node.op_type in _SCATTERS else None
    if reduction is None:
        return node.op_type
    declared = (
        "add" if reduction.is_ref() else reduction.as_string()
    )  # a reference: a function's caller declares it
    return _REDUCTIONS.get(declared, node.op_type)


_SCATTERS = frozenset(("ScatterElements", "ScatterND"))
_REDUCTIONS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
