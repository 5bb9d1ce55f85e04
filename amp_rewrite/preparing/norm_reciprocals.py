"""Writes the Reciprocal of a norm's root as the division of 1 by it, which onnxruntime fuses.

    x * Reciprocal(Sqrt(ReduceMean(...) + epsilon))   ->   x * (1 / Sqrt(ReduceMean(...) + epsilon))

onnxruntime 1.31.1 makes a SimplifiedLayerNormalization of `x / s` and of `x * (1 / s)`, and of no Reciprocal,
not even in float32. Both round the exact quotient once: they are equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from amp_rewrite.model import graph_edits
from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.norm_roots import is_plain, maker, mean_of

_BROADCASTS = 7
"""From this opset on the operands of a Div are broadcast."""


def write(model: ir.Model, kept: Container[ir.Node]) -> tuple[FormChange, ...]:
    """Writes these reciprocals in float32 as divisions, but for the nodes that are `kept`."""
    if element_types.default_opset(model.graph.opset_imports) < _BROADCASTS:
        return ()
    found = [node for node in every_node(model.graph) if _is_of_norm(node) and node not in kept]
    names = UniqueNames(graphs(model.graph)) if found else None
    return tuple(_divide(node, names) for node in found) if names is not None else ()


def _is_of_norm(node: ir.Node) -> bool:
    """Whether a node inverts the root of a mean of float32, for one multiplication."""
    if not is_plain(node, "Reciprocal"):
        return False
    readers = node.outputs[0].uses()
    scales = len(readers) == 1 and all(is_plain(reader, "Mul") for reader, _ in readers)
    root = maker(node.inputs[0], "Sqrt") if scales else None
    return root is not None and mean_of(root) is not None


def _divide(node: ir.Node, names: UniqueNames) -> FormChange:
    change = FormChange(FormChangeKind.RECIPROCAL, pinned_as(node))
    one = names.constant(node.outputs[0], "one", ir.tensor(1.0, ir.DataType.FLOAT))
    graph_edits.replace_by(node, "Div", [one.outputs[0], node.inputs[0]], one)
    return change
