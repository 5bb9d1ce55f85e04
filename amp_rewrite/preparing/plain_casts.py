"""Casts from float32 to float32 are bypassed, and every CastLike whose type is known is written as a Cast."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.model import graph_edits, traversal
from amp_rewrite.onnx_types.element_types import Types


def bypass(model: ir.Model, types: Types) -> None:
    """Removes Casts from float32 to float32, which some exporters write, and which would separate nodes that
    belong together. One that produces an output of the model or of a body stays.
    """
    sources: dict[ir.Value, ir.Value] = {}
    nodes = [*_idle(model, types)]
    for node in nodes:
        value = node.inputs[0]
        assert value is not None, "an idle Cast reads something"
        sources[node.outputs[0]] = sources.get(value, value)  # of a row of Casts, what the first one reads
    graph_edits.replace_uses(sources)
    graph_edits.remove(nodes)


def _idle(model: ir.Model, types: Types) -> Iterator[ir.Node]:
    float32 = ir.TensorType(ir.DataType.FLOAT)
    for node in traversal.every_node(model.graph):
        if node.op_type != "Cast" or node.domain or node.inputs[0] is None:
            continue
        output = node.outputs[0]
        if not output.is_graph_output() and types.get(node.inputs[0]) == float32 == types.get(output):
            yield node


def write_cast_likes(model: ir.Model, types: Types) -> None:
    """Writes CastLikes as Casts where they stand; values keep their names.

    Functions that onnxscript makes give their constants the type of an argument this way. A CastLike reads a
    value for its type alone: the value would be cast for it, and a constant behind it is not seen to be one.
    """
    for node in traversal.every_node(model.graph):
        if node.op_type == "CastLike" and not node.domain:
            _write(node, types)


def _write(node: ir.Node, types: Types) -> None:
    value, like = node.inputs
    found = None if like is None else types.get(like)
    if isinstance(found, ir.TensorType) and value is not None:
        node.op_type = "Cast"
        node.resize_inputs(1)
        node.attributes["to"] = ir.AttrInt64("to", found.dtype)
