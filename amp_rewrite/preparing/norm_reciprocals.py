"""Writes the Reciprocal of a norm's root as the division of 1 by it, which onnxruntime fuses.

    x * Reciprocal(Sqrt(ReduceMean(...) + epsilon))   ->   x * (1 / Sqrt(ReduceMean(...) + epsilon))

onnxruntime 1.31.1 makes a SimplifiedLayerNormalization of `x / s` and of `x * (1 / s)`, and of no Reciprocal,
not even in float32. Both round the exact quotient once: they are equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from amp_rewrite.model import graph_edits
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind

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
    if node.op_type != "Reciprocal" or node.domain:
        return False
    readers = node.outputs[0].uses()
    scales = len(readers) == 1 and all(_is(reader, "Mul") for reader, _ in readers)
    root = _maker(node, "Sqrt")
    shifted = _maker(root, "Add") if scales and root is not None else None
    return (
        shifted is not None and any(map(_is_mean, shifted.inputs)) and any(map(_is_epsilon, shifted.inputs))
    )


def _is(node: ir.Node, operator: str) -> bool:
    return node.op_type == operator and not node.domain


def _maker(node: ir.Node, operator: str) -> ir.Node | None:
    """The node that makes the first input of a node, if it is this operator."""
    value = node.inputs[0] if node.inputs else None
    found = value.producer() if value is not None else None
    return found if found is not None and _is(found, operator) else None


def _is_mean(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    return node is not None and _is(node, "ReduceMean")


def _is_epsilon(value: ir.Value | None) -> bool:
    """It also tells the type: both operands of an Add have one."""
    tensor = stored_as(value)
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size == 1


def _divide(node: ir.Node, names: UniqueNames) -> FormChange:
    change, value = FormChange(FormChangeKind.RECIPROCAL, pinned_as(node)), node.outputs[0]
    one = names.constant(value, "one", ir.tensor(1.0, ir.DataType.FLOAT))
    division = ir.Node("", "Div", [one.outputs[0], node.inputs[0]], name=node.name)
    quotient = division.outputs[0]
    quotient.name, quotient.type, quotient.shape = value.name, value.type, value.shape
    graph_edits.replace(node, [one, division], quotient)
    return change
