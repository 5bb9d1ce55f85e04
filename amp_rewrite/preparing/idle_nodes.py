"""Leaves out Identities that a runtime executes: of outputs of a graph whose value others read too.

onnxruntime removes all other Identities itself (identity_elimination.cc), and they stay.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from amp_rewrite.model.traversal import every_node
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing import standing_in
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind


def leave_out(model: ir.Model, kept: Container[ir.Node], held: Container[str]) -> tuple[FormChange, ...]:
    """Leaves out these, but for those that are `kept`, and those whose values are `held` by name."""
    changes: list[FormChange] = []
    for node in [node for node in every_node(model.graph) if _is_idle(node)]:
        value = node.inputs[0]
        if value is not None and standing_in.may(value, node, kept, held):
            changes.append(FormChange(FormChangeKind.IDLE, pinned_as(node)))
            standing_in.put(value, node, model.graph)
    return tuple(changes)


def _is_idle(node: ir.Node) -> bool:
    """Whether a node is an Identity that makes an output, and something else reads that, or what it is made
    from.
    """
    if node.domain or node.op_type != "Identity" or len(node.inputs) != 1:
        return False
    value, output = node.inputs[0], node.outputs[0]
    is_read = value is not None and len(value.consumers()) > 1
    return output.is_graph_output() and (is_read or bool(output.uses()))
