"""Writes the product of data with themselves in a norm as their power of 2, which onnxruntime fuses.

    Sqrt(ReduceMean(d * d) + epsilon)   ->   Sqrt(ReduceMean(Pow(d, 2)) + epsilon)

onnxruntime 1.31.1 makes one node of such a norm with a weight where the square is a Pow, and of no Mul, not
even in float32. What is squared may be data without their mean: with a bias behind, all is a
LayerNormalization. The fused kernel squares by a multiplication.
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
from amp_rewrite.preparing.norm_roots import is_plain, maker, mean_of, number, only_reader

_BROADCASTS = 7
"""From this opset on the operands of a Pow are broadcast."""


def write(model: ir.Model, kept: Container[ir.Node]) -> tuple[FormChange, ...]:
    """Writes these products in float32 as powers, but for the nodes that are `kept`."""
    if element_types.default_opset(model.graph.opset_imports) < _BROADCASTS:
        return ()
    nodes = [node for node in every_node(model.graph) if is_plain(node, "Sqrt")]
    found = [square for square in map(_square, nodes) if square is not None and square not in kept]
    names = UniqueNames(graphs(model.graph)) if found else None
    return tuple(_raise(node, names) for node in found) if names is not None else ()


def _square(root: ir.Node) -> ir.Node | None:
    """The product of data with themselves below the root of a norm with a weight; None elsewhere."""
    mean = mean_of(root)
    square = maker(mean.inputs[0], "Mul") if mean is not None else None
    if square is None or square.inputs[0] is None or square.inputs[0] is not square.inputs[1]:
        return None
    has_readers = only_reader(square.outputs[0]) is mean
    return square if has_readers and _is_weighted(root, square.inputs[0]) else None


def _is_weighted(root: ir.Node, data: ir.Value) -> bool:
    """Whether data are divided by a root, at once or by its inverse, and only a stored weight follows."""
    division = only_reader(root.outputs[0])
    if division is None or not is_plain(division, "Div") or division.inputs[1] is not root.outputs[0]:
        return False
    result: ir.Node | None = division
    if number(division.inputs[0]) == 1:
        result = _multiplied(division.outputs[0])
    if result is None or data not in result.inputs:
        return False
    weighted = _multiplied(result.outputs[0])
    return weighted is not None and any(stored_as(value) is not None for value in weighted.inputs)


def _multiplied(value: ir.Value) -> ir.Node | None:
    """The product that alone reads a value."""
    node = only_reader(value)
    return node if node is not None and is_plain(node, "Mul") else None


def _raise(node: ir.Node, names: UniqueNames) -> FormChange:
    change = FormChange(FormChangeKind.SQUARE, pinned_as(node))
    two = names.constant(node.outputs[0], "two", ir.tensor(2.0, ir.DataType.FLOAT))
    graph_edits.replace_by(node, "Pow", [node.inputs[0], two.outputs[0]], two)
    return change
