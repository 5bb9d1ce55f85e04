"""Facts about ONNX's nodes that depend on their attributes and stored inputs: what they move, and whether a
scatter adds.
"""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.constants import numbers, stored_as
from amp_rewrite.onnx_facts.operators import REARRANGES, SELECTS


def rearranges(node: ir.Node) -> bool:
    """Whether the first output of a node holds all elements of its first input, as of a whole Slice."""
    if node.domain:
        return False
    if node.op_type != "Slice" or not 3 <= len(node.inputs) <= 4:
        return node.op_type in REARRANGES
    starts, ends = (stored_as(value) for value in node.inputs[1:3])
    if starts is None or ends is None:
        return False
    return not numbers(starts).any() and bool((numbers(ends) >= _LAST).all())


def source(value: ir.Value, *, selected: bool = False) -> ir.Value:
    """The value of which this one is rearranged, or of which it is `selected` as well."""
    while (maker := value.producer()) is not None and not maker.domain and maker.inputs:
        first = maker.inputs[0]
        if first is None or not (rearranges(maker) or (selected and maker.op_type in SELECTS)):
            break
        value = first
    return value


_LAST = 2**31 - 1
"""The least end of a Slice that is the end of the axis whatever its size."""


def effective_op(node: ir.Node) -> str:
    """The operator whose arithmetic a node does: a scatter that adds is an Add, any other node itself."""
    reduction = node.attributes.get("reduction") if node.op_type in _SCATTERS else None
    if reduction is None:
        return node.op_type
    declared = (
        "add" if reduction.is_ref() else reduction.as_string()
    )  # a reference: a function's caller declares it
    return _REDUCTIONS.get(declared, node.op_type)


_SCATTERS = frozenset(("ScatterElements", "ScatterND"))
_REDUCTIONS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
