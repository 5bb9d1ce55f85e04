"""Writes every CastLike whose type is known as a Cast.

Functions that onnxscript makes give their constants the type of an argument this way. A CastLike reads a
value for its type alone: the value would be cast for it, and a constant behind it is not seen to be one.
"""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model import traversal
from amp_rewrite.onnx_types.element_types import Types


def write_as_casts(model: ir.Model, types: Types) -> None:
    """Changes the nodes where they stand; values keep their names."""
    for node in (node for graph in traversal.graphs(model.graph) for node in graph):
        if node.op_type == "CastLike" and not node.domain:
            _write(node, types)


def _write(node: ir.Node, types: Types) -> None:
    value, like = node.inputs
    found = None if like is None else types.get(like)
    if isinstance(found, ir.TensorType) and value is not None:
        node.op_type = "Cast"
        node.resize_inputs(1)
        node.attributes["to"] = ir.AttrInt64("to", found.dtype)
