"""The values of a model that may differ from run to run; a runtime computes all others once."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.traversal import GraphNodes


def find(nodes: GraphNodes) -> set[ir.Value | None]:
    """All values that depend on an input of the model or of a body."""
    found: set[ir.Value | None] = set()
    for inner, held in nodes.items():
        found.update(value for value in inner.inputs if value.const_value is None)
        for node in held:
            if not found.isdisjoint(node.inputs):
                found.update(node.outputs)
    return found
