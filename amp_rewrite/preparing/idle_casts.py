"""Bypasses Casts from float32 to float32."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types.element_types import Types


def bypass(model: ir.Model, types: Types) -> None:
    """Removes Casts from float32 to float32, which some exporters write, and which would separate nodes that
    belong together. One that produces an output of the model or of a body stays.
    """
    for node in [*_idle(model, types)]:
        value = node.inputs[0]  # read only now: one of a row of Casts has moved on to what the first read
        if value is not None and node.graph is not None:
            node.outputs[0].replace_all_uses_with(value)
            node.graph.remove(node, safe=True)


def _idle(model: ir.Model, types: Types) -> Iterator[ir.Node]:
    float32 = ir.TensorType(ir.DataType.FLOAT)
    for node in (node for graph in graphs(model.graph) for node in graph):
        if node.op_type != "Cast" or node.domain or node.inputs[0] is None:
            continue
        output = node.outputs[0]
        if not output.is_graph_output() and types.get(node.inputs[0]) == float32 == types.get(output):
            yield node
