"""Known faults of runtimes that a valid half model would trip over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.findings import Finding, acts_as
from amp_rewrite.units import Unit, UnitGraph

_CRASH = "onnxruntime's CPU provider crashes on a half Transpose of the first axis before a MatMul"
_REDUCES = "it sums into its data, for which onnxruntime's CPU provider has no half kernel"
_FUNCTION = "onnxruntime runs it as a function with float32 constants, and refuses half"
_SHOWS_MASK = "it gives its masked scores away, and fills them with the lowest number of the type"
_NO_KERNEL = "onnxruntime has no half kernel for it at all"


def check(graph: UnitGraph) -> Mapping[int, Finding]:
    """The units that stay float32 so that no runtime that we know of fails on the result."""
    found: dict[int, Finding] = {}
    for unit in graph.units:
        fault = _FAULTS.get(unit.node.op_type)
        if fault is not None and unit.node.domain == "" and (reason := fault(unit)):
            found[unit.index] = Finding(reason, always=True)
    return found


def _transpose(unit: Unit) -> str:
    return _CRASH if _moves_first(unit.node) and _feeds_product(unit.node.outputs[0]) else ""


def _attention(unit: Unit) -> str:
    """The fourth output are the scores after masking: -3.4e38 in float32 would be -65504 in half."""
    outputs = unit.node.outputs
    shown = len(outputs) > 3 and bool(outputs[3].uses() or outputs[3].is_graph_output())
    return _SHOWS_MASK if shown else ""


def _scatter(unit: Unit) -> str:
    return "" if acts_as(unit.node) == unit.node.op_type else _REDUCES


def _moves_first(node: ir.Node) -> bool:
    """Seen with onnxruntime 1.31.1: perm [1, 0, 2], [1, 2, 0], [1, 2, 0, 3] and their like crash when the
    session is made (MatmulTransposeFusion, then NchwcTransformer); [0, 2, 1] and [1, 0] do not.
    """
    perm = node.attributes.get("perm")
    if perm is None or perm.is_ref():
        return False
    order = list(perm.as_ints())
    return len(order) > 2 and order[0] == 1 and 0 in order[-2:]


def _feeds_product(value: ir.Value) -> bool:
    """Whether a value is the first operand of a MatMul, also through Casts: they do not prevent the crash."""
    return any(
        (node.op_type == "MatMul" and port == 0)
        or (node.op_type == "Cast" and _feeds_product(node.outputs[0]))
        for node, port in value.uses()
    )


_FAULTS: Mapping[str, Callable[[Unit], str]] = {
    "Attention": _attention,
    "EyeLike": lambda _unit: _NO_KERNEL,
    "MeanVarianceNormalization": lambda _unit: _FUNCTION,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Transpose": _transpose,
}
"""What fails in half, by operator: a reason to stay float32, or nothing."""
