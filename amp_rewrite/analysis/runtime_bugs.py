"""Known faults of runtimes that a valid half model would trip over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.analysis import transposes
from amp_rewrite.analysis.findings import Finding, effective_op
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.onnx_types.element_types import Types

_CRASH = "onnxruntime's CPU provider crashes on a half Transpose of the first axis before a MatMul"
_REDUCES = "it sums into its data, for which onnxruntime's CPU provider has no half kernel"
_FUNCTION = "onnxruntime runs it as a function with float32 constants, and refuses half"
_SHOWS_MASK = "it gives its masked scores away, and fills them with the lowest number of the type"
_CLASHES = "onnxruntime's CPU provider puts a Cast in its way that clashes with its attribute output_datatype"
_NO_KERNEL = "onnxruntime has no half kernel for it at all"
_NO_CPU_KERNEL = "onnxruntime's CPU provider has no half kernel for it, and no input of it to cast"
_ONE = "onnxruntime runs it as a function, which fails in half for a batch of one"


def check(graph: UnitGraph) -> Mapping[int, Finding]:
    """The units that stay float32 so that no runtime that we know of fails on the result."""
    found: dict[int, Finding] = {}
    for operator, fault in _FAULTS.items():
        for unit in graph.by_operator.get(operator, ()):
            node = graph.units[unit].node
            if node.domain == "" and (reason := fault(node, graph.types)):
                found[unit] = Finding(reason, always=True)
    crashing = transposes.crashing(node for nodes in graph.nodes.values() for node in nodes)
    crashes = (unit for unit in graph.units if unit.node in crashing) if crashing else ()
    found.update({unit.index: Finding(_CRASH, always=True) for unit in crashes})
    return found


def _attention(node: ir.Node, types: Types) -> str:
    """The fourth output may be the scores after masking: -3.4e38 in float32 would be -65504 in half."""
    outputs = node.outputs
    shown = len(outputs) > 3 and bool(outputs[3].uses() or outputs[3].is_graph_output())
    masked = _says(node, "qk_matmul_output_mode") not in _UNMASKED and _fills(node, types)
    return _SHOWS_MASK if shown and masked else ""


_UNMASKED = (0, 3)
"""The modes of that output that show the raw product and the softmax; those between moved with the opset."""


def _fills(node: ir.Node, types: Types) -> bool:
    """Whether an Attention fills scores itself: later ones, those a truth value hides, and padding."""
    mask, *more = *node.inputs[3:], None
    hides = mask is not None and types[mask].dtype == ir.DataType.BOOL
    return hides or _says(node, "is_causal") != 0 or any(value is not None for value in more[2:])


def _says(node: ir.Node, name: str) -> int:
    """An integer attribute that is 0 by default; -1 where the caller of a function says it."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return 0
    return -1 if attribute.is_ref() else attribute.as_int()


def _affine_grid(node: ir.Node, _: Types) -> str:
    """Seen with onnxruntime 1.31.1: a grid in the plane for theta of the shape [1, 2, 3]."""
    theta = node.inputs[0]
    shape = None if theta is None else theta.shape
    if shape is None or len(shape) != _MATRICES:
        return _ONE
    images, rows = shape[0], shape[1]
    several = isinstance(images, int) and images > 1
    return "" if several or rows == _ROWS_IN_SPACE else _ONE


_MATRICES, _ROWS_IN_SPACE = 3, 3
"""The rank of theta, and the rows of a matrix that places points in space; in the plane it has two."""


def _scatter(node: ir.Node, _: Types) -> str:
    return "" if effective_op(node) == node.op_type else _REDUCES


_FAULTS: Mapping[str, Callable[[ir.Node, Types], str]] = {
    "AffineGrid": _affine_grid,
    "Attention": _attention,
    "EyeLike": lambda *_: _NO_KERNEL,
    "MeanVarianceNormalization": lambda *_: _FUNCTION,
    "MelWeightMatrix": lambda *_: _CLASHES,
    "RandomNormal": lambda *_: _NO_CPU_KERNEL,
    "RandomUniform": lambda *_: _NO_CPU_KERNEL,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
}
"""What fails in half, by operator: a reason to stay float32, or nothing."""
