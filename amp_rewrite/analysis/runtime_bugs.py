"""Known bugs of runtimes that affect valid half models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.operators import effective_op
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import transposed_operands
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.evidence import Authority, Evidence, Reason


def check(graph: UnitGraph) -> Mapping[int, Evidence]:
    """The units that must stay float32 so that no known runtime fails on the result."""
    found: dict[int, Evidence] = {}
    for operator, fault in _FAULTS.items():
        for unit in graph.by_operator.get(operator, ()):
            node = graph.units[unit].node
            if node.domain == "" and (reason := fault(node, graph.types)):
                found[unit] = Evidence(Authority.RUNTIME_BUG, reason)
    evidence = Evidence(Authority.RUNTIME_BUG, Reason.UNEQUAL_RANKS)
    return {**found, **dict.fromkeys(graph.of_nodes(_unequal_ranks(graph)), evidence)}


def _unequal_ranks(graph: UnitGraph) -> frozenset[ir.Node]:
    """The products that onnxruntime fails on if a Cast stands between them and a Transpose, as their operands
    are not known to have the same rank; and all that stands between.
    """
    nodes = (node for held in graph.nodes.values() for node in held)
    ranks = transposed_operands.transposed(nodes)
    failing = [product for product in transposed_operands.products(ranks) if not product.is_fused]
    waiting, seen = [product.operand for product in failing], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        if value not in seen:
            seen.add(value)
            waiting.extend(read for read in transposed_operands.sources(value) if read in ranks)
    between = {node for value in seen if (node := value.producer()) is not None}
    return frozenset(between | {product.node for product in failing})


def _attention(node: ir.Node, types: Types) -> Reason | None:
    """The fourth output may be the scores after masking: -3.4e38 in float32 would be -65504 in half."""
    outputs = node.outputs
    shown = len(outputs) > 3 and bool(outputs[3].uses() or outputs[3].is_graph_output())
    masked = _says(node, "qk_matmul_output_mode") not in _UNMASKED and _fills(node, types)
    return Reason.MASKED_SCORES if shown and masked else None


_UNMASKED = (0, 3)
"""The modes of that output without masking: the raw product and the softmax. Others vary by opset."""


def _fills(node: ir.Node, types: Types) -> bool:
    """Whether an Attention masks scores itself: by causality, a boolean mask, or padding."""
    mask, *more = *node.inputs[3:], None
    hides = mask is not None and types[mask].dtype == ir.DataType.BOOL
    return hides or _says(node, "is_causal") != 0 or any(value is not None for value in more[2:])


def _says(node: ir.Node, name: str) -> int:
    """An integer attribute with the default 0; -1 for a reference to a function's attribute."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return 0
    return -1 if attribute.is_ref() else attribute.as_int()


def _affine_grid(node: ir.Node, _: Types) -> Reason | None:
    """Seen with onnxruntime 1.31.1: a grid in the plane for theta of the shape [1, 2, 3]."""
    theta = node.inputs[0]
    shape = None if theta is None else theta.shape
    if shape is None or len(shape) != _MATRICES:
        return Reason.BATCH_OF_ONE
    images, rows = shape[0], shape[1]
    several = isinstance(images, int) and images > 1
    return None if several or rows == _ROWS_IN_SPACE else Reason.BATCH_OF_ONE


_MATRICES, _ROWS_IN_SPACE = 3, 3
"""The rank of theta, and the rows of a matrix that places points in space; in the plane it has two."""


def _scatter(node: ir.Node, _: Types) -> Reason | None:
    return None if effective_op(node) == node.op_type else Reason.HALF_REDUCTION


_FAULTS: Mapping[str, Callable[[ir.Node, Types], Reason | None]] = {
    "AffineGrid": _affine_grid,
    "Attention": _attention,
    "EyeLike": lambda *_: Reason.NO_KERNEL_AT_ALL,
    "MeanVarianceNormalization": lambda *_: Reason.FLOAT32_FUNCTION,
    "MelWeightMatrix": lambda *_: Reason.CLASHING_CAST,
    "RandomNormal": lambda *_: Reason.NO_CPU_KERNEL,
    "RandomUniform": lambda *_: Reason.NO_CPU_KERNEL,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
}
"""What fails in half, by operator: the reason to stay float32, or None."""
