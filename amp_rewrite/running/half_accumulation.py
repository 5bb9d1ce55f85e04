"""Operators that sum in half on some runtimes -> nodes that round every partial sum, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types import schema
from amp_rewrite.running import half_norms, half_products, half_reductions
from amp_rewrite.running.half_steps import Steps

Rule = Callable[[Steps], ir.Value | None]
"""Makes the steps of a node; returns the value before it is rounded, None where the node stays as it is."""

RULES: Mapping[str, Rule] = {
    "AveragePool": half_reductions.average_pool,
    "Conv": half_products.conv,
    "ConvTranspose": half_products.conv_transpose,
    "Gemm": half_products.gemm,
    "GlobalAveragePool": half_reductions.global_average_pool,
    "InstanceNormalization": half_norms.instance_norm,
    "LayerNormalization": half_norms.layer_norm,
    "MatMul": half_products.matmul,
    "ReduceL2": half_reductions.reduced,
    "ReduceMean": half_reductions.reduced,
    "ReduceSum": half_reductions.reduced,
    "ReduceSumSquare": half_reductions.reduced,
    "com.microsoft:FusedConv": half_products.fused_conv,
    "SimplifiedLayerNormalization": half_norms.simplified_layer_norm,
    "Softmax": half_reductions.softmax,
}
"""By operator, as lists write it. All others but UNKNOWN compute an element from few others, which rounding
the result is nearly all of.
"""

UNKNOWN = frozenset(
    "Attention CumSum Einsum GRU GlobalLpPool GroupNormalization LSTM LogSoftmax LpNormalization LpPool "
    "MeanVarianceNormalization RMSNormalization RNN ReduceL1 ReduceLogSum ReduceLogSumExp "
    "com.microsoft:Attention com.microsoft:FusedGemm com.microsoft:FusedMatMul "
    "com.microsoft:GroupQueryAttention com.microsoft:MultiHeadAttention "
    "com.microsoft:SkipLayerNormalization com.microsoft:SkipSimplifiedLayerNormalization".split()
)
"""Operators that sum in an order that no rule knows, as lists write them."""


def apply(halves: Iterable[tuple[ir.Node, ir.DataType]], opset: int, names: UniqueNames) -> list[ir.Node]:
    """Makes nodes of an emulation, of which each was computed in that type, sum in it too; returns those of
    which too little is known, which sum in float32.
    """
    left: list[ir.Node] = []
    for node, half in halves:
        steps = Steps(node, half, opset, names)
        made = _made(steps)
        if made is None:
            left.append(node)
        else:
            _replace(node, steps, made)
    return left


def sums(node: ir.Node) -> bool:
    """Whether a node adds up values."""
    operator = schema.written(node.domain, node.op_type)
    return operator in RULES or operator in UNKNOWN


def _made(steps: Steps) -> ir.Value | None:
    rule = RULES.get(schema.written(steps.node.domain, steps.node.op_type))
    return None if rule is None else rule(steps)


def summed(value: ir.Value, half: ir.DataType, opset: int, names: UniqueNames) -> ir.Value:
    """A value beside a float32 one, not rounded at its end, that its node would make by sums in half.

    The value itself where its node sums nothing.
    """
    node = value.producer()
    if node is None or not sums(node) or value is not node.outputs[0]:
        return value
    steps = Steps(node, half, opset, names)
    made = _made(steps)
    if made is None:
        return value
    assert node.graph is not None, "the nodes of a model belong to its graphs"
    node.graph.insert_after(node, steps.made)
    return made


def _replace(node: ir.Node, steps: Steps, made: ir.Value) -> None:
    """The node keeps its name and its output, and hands on what was made."""
    assert node.graph is not None, "the nodes of a model belong to its graphs"
    node.graph.insert_before(node, steps.made)
    node.domain, node.op_type = "", "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, made)
