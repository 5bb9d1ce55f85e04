"""The values of a model that may differ from run to run; a runtime computes all others once."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.traversal import GraphNodes


def find(nodes: GraphNodes) -> set[ir.Value | None]:
    """All values that depend on an input of the model or of a body, and not on known sizes of it alone."""
    found: set[ir.Value | None] = set()
    for inner, held in nodes.items():
        found.update(value for value in inner.inputs if value.const_value is None)
        for node in held:
            if not found.isdisjoint(node.inputs) and not _asks_for_known_sizes(node):
                found.update(node.outputs)
    return found


def _asks_for_known_sizes(node: ir.Node) -> bool:
    """Whether it is the shape of a value whose sizes are all known: onnxruntime computes that once."""
    if node.domain or node.op_type not in ("Shape", "Size"):
        return False
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and shape.is_static()
