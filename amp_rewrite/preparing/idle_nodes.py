"""Leaves out nodes that give what they are given, and that a runtime executes.

    y = Identity(x)                            where y is an output of a graph, and others read x or y
    y = ImageScaler <scale = 1, bias = 0> (x)  as converters from CoreML write it where nothing is scaled

onnxruntime removes all other Identities itself (identity_elimination.cc), and they stay.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from amp_rewrite.model.traversal import graphs
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing import standing_in
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind


def leave_out(model: ir.Model, kept: Container[ir.Node], held: Container[str]) -> tuple[FormChange, ...]:
    """Leaves out these nodes, but for those that are `kept`, and those whose values are `held` by name."""
    changes: list[FormChange] = []
    for node in [node for graph in graphs(model.graph) for node in graph if _is_idle(node)]:
        value = node.inputs[0]
        if value is not None and standing_in.may(value, node, kept, held):
            changes.append(FormChange(FormChangeKind.IDLE, pinned_as(node)))
            standing_in.put(value, node, model.graph)
    return tuple(changes)


def _is_idle(node: ir.Node) -> bool:
    if node.domain or len(node.inputs) != 1 or len(node.outputs) != 1:
        return False
    if node.op_type == "Identity":
        return _is_read_beside(node)
    return node.op_type == "ImageScaler" and _scales_nothing(node)


def _is_read_beside(identity: ir.Node) -> bool:
    """Whether an Identity makes an output, and something else reads that, or what it is made from."""
    value, output = identity.inputs[0], identity.outputs[0]
    read = value is not None and len(value.consumers()) > 1
    return output.is_graph_output() and (read or bool(output.uses()))


def _scales_nothing(image_scaler: ir.Node) -> bool:
    """Whether it multiplies by 1, which is its default, and adds 0 to all channels."""
    given = image_scaler.attributes
    if any(attribute.is_ref() for attribute in given.values()):
        return False
    scale, bias = given.get("scale"), given.get("bias")
    has_bias = bias is not None and any(bias.as_floats())
    return not has_bias and (scale is None or scale.as_float() == 1)
