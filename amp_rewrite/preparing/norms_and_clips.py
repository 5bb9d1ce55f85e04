"""Norms and Clips in the spellings for which the target has kernels.

A norm is written with Pow and Div, which onnxruntime fuses. A Clip is written as Max and Min where the
target has half kernels for these and none for Clip: onnxruntime's CUDA provider has none in float16 before
opset 12, and none in bfloat16 at all. Both forms give the same bits, NaN and infinities included, but for
one: Clip keeps a zero's sign where a bound is zero, and Max and Min need not. A bound that is missing is the
largest number of float32, as it is for Clip.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import constants, graph_edits, traversal
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing import form_changes, half_ports
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.half_ports import FLOAT32, HalfPorts

# The root in a norm that is written out, and what stands beside it: Sqrt(ReduceMean(...) + epsilon).


def mean_under_root(root: ir.Node) -> ir.Node | None:
    """The ReduceMean of float32 of which a node takes the root, with an epsilon; None for any other node."""
    shifted = producer_of(root.inputs[0], "Add") if is_plain(root, "Sqrt") else None
    if shifted is None or not any(map(_is_epsilon, shifted.inputs)):
        return None
    means = [producer_of(value, "ReduceMean") for value in shifted.inputs]
    return next((mean for mean in means if mean is not None), None)


def is_plain(node: ir.Node, operator: str) -> bool:
    """Whether a node is this operator of ONNX's."""
    return node.op_type == operator and not node.domain


def producer_of(value: ir.Value | None, operator: str) -> ir.Node | None:
    """The node that makes a value, if it is this operator."""
    node = value.producer() if value is not None else None
    return node if node is not None and is_plain(node, operator) else None


def only_consumer(value: ir.Value) -> ir.Node | None:
    """The node that alone reads a value, at one port or several; None where there are others, or an output is
    that value.
    """
    readers = value.consumers()
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def scalar_of(value: ir.Value | None) -> float | None:
    """A stored float32 number; None for any other value."""
    tensor = stored_as(value)
    is_number = tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size == 1
    return float(tensor.numpy().item()) if tensor is not None and is_number else None


def _is_epsilon(value: ir.Value | None) -> bool:
    """It also tells the type: both operands of an Add have one."""
    return scalar_of(value) is not None


# Sqrt(ReduceMean(d * d) + epsilon) becomes Sqrt(ReduceMean(Pow(d, 2)) + epsilon): onnxruntime 1.31.1 makes
# one node of such a norm with a weight where the square is a Pow, and of no Mul, not even in float32. What
# is squared may be data without their mean: with a bias behind, all is a LayerNormalization. The fused kernel
# squares by a multiplication.

_POW_BROADCASTS = 7
"""From this opset on the operands of a Pow are broadcast."""


def write_squares(model: ir.Model, kept: Container[ir.Node]) -> tuple[FormChange, ...]:
    """Writes these products in float32 as powers, but for the nodes that are `kept`."""
    if element_types.default_opset(model.graph.opset_imports) < _POW_BROADCASTS:
        return ()
    nodes = [node for node in every_node(model.graph) if is_plain(node, "Sqrt")]
    found = [square for square in map(_square, nodes) if square is not None and square not in kept]
    names = UniqueNames(graphs(model.graph)) if found else None
    return tuple(_raise(node, names) for node in found) if names is not None else ()


def _square(root: ir.Node) -> ir.Node | None:
    """The product of data with themselves below the root of a norm with a weight; None elsewhere."""
    mean = mean_under_root(root)
    square = producer_of(mean.inputs[0], "Mul") if mean is not None else None
    if square is None or square.inputs[0] is None or square.inputs[0] is not square.inputs[1]:
        return None
    has_readers = only_consumer(square.outputs[0]) is mean
    return square if has_readers and _is_weighted(root, square.inputs[0]) else None


def _is_weighted(root: ir.Node, data: ir.Value) -> bool:
    """Whether data are divided by a root, at once or by its inverse, and only a stored weight follows."""
    division = only_consumer(root.outputs[0])
    if division is None or not is_plain(division, "Div") or division.inputs[1] is not root.outputs[0]:
        return False
    result: ir.Node | None = division
    if scalar_of(division.inputs[0]) == 1:
        result = _multiplied(division.outputs[0])
    if result is None or data not in result.inputs:
        return False
    weighted = _multiplied(result.outputs[0])
    return weighted is not None and any(stored_as(value) is not None for value in weighted.inputs)


def _multiplied(value: ir.Value) -> ir.Node | None:
    """The product that alone reads a value."""
    node = only_consumer(value)
    return node if node is not None and is_plain(node, "Mul") else None


def _raise(node: ir.Node, names: UniqueNames) -> FormChange:
    change = FormChange(FormChangeKind.SQUARE, pinned_as(node))
    two = names.constant(node.outputs[0], "two", ir.tensor(2.0, ir.DataType.FLOAT))
    graph_edits.replace_by(node, "Pow", [node.inputs[0], two.outputs[0]], two)
    return change


# x * Reciprocal(root) becomes x * (1 / root): onnxruntime 1.31.1 makes a SimplifiedLayerNormalization of
# x / root and of x * (1 / root), and of no Reciprocal, not even in float32. Both round the exact quotient
# once: they are equal bit by bit.

_DIV_BROADCASTS = 7
"""From this opset on the operands of a Div are broadcast."""


def write_reciprocals(model: ir.Model, kept: Container[ir.Node]) -> tuple[FormChange, ...]:
    """Writes these reciprocals in float32 as divisions, but for the nodes that are `kept`."""
    if element_types.default_opset(model.graph.opset_imports) < _DIV_BROADCASTS:
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
    root = producer_of(node.inputs[0], "Sqrt") if scales else None
    return root is not None and mean_under_root(root) is not None


def _divide(node: ir.Node, names: UniqueNames) -> FormChange:
    change = FormChange(FormChangeKind.RECIPROCAL, pinned_as(node))
    one = names.constant(node.outputs[0], "one", ir.tensor(1.0, ir.DataType.FLOAT))
    graph_edits.replace_by(node, "Div", [one.outputs[0], node.inputs[0]], one)
    return change


def rewrite_clips(model: ir.Model, form: Form) -> tuple[FormChange, ...]:
    """Rewrites the float32 Clips between what will likely be half (half_ports), but for those that keep
    their form (form_changes).

    The Min takes the node's name. A bound that is computed, or no scalar, keeps its Clip.
    """
    nodes = [*traversal.every_node(model.graph)]
    clips = [node for node in nodes if half_ports.is_clip(node)]
    version_of, ports = element_types.versions(model.opset_imports), HalfPorts(form)
    if not form.raise_opset or not clips or not ports.prefers_max_and_min(version_of("")):
        return ()
    types, kept = element_types.infer(model), form_changes.nodes_to_preserve(model, form)
    half = half_ports.predict_outlook(nodes, types, ports, version_of).half
    clips = [
        node for node in clips if node not in kept and _is_known(node, types) and _is_between(node, half)
    ]
    changes = [
        FormChange(FormChangeKind.MAX_AND_MIN, pinned_as(node), into=pinned_as(node)) for node in clips
    ]
    stored = _Constants(UniqueNames(traversal.graphs(model.graph)))
    for node in clips:
        _replace(node, stored)
    return tuple(changes)


def _is_between(node: ir.Node, half: Collection[ir.Node]) -> bool:
    """Whether what makes a Clip's data will be half, and what reads its result, or nothing reads it."""
    data, result = node.inputs[0], node.outputs[0]
    readers = result.consumers()
    return data is not None and data.producer() in half and (not readers or any(r in half for r in readers))


def _is_known(node: ir.Node, types: Types) -> bool:
    """Whether a Clip has float32 data, and bounds that are absent, or stored scalars: of one that is NaN,
    which a Clip ignores, Max and Min make NaN.
    """
    data = node.inputs[0]
    if data is None or types.get(data) != FLOAT32:
        return False
    stated = all(a.type == ir.AttributeType.FLOAT and not a.is_ref() for a in node.attributes.values())
    numbers = stated and not any(math.isnan(each.as_float()) for each in node.attributes.values())
    return numbers and all(value is None or _is_number(value) for value in node.inputs[1:])


def _is_number(value: ir.Value) -> bool:
    """Whether a value is a stored scalar that is a number, whatever a caller gives."""
    stored = None if value.is_graph_input() else constants.stored_as(value)
    return stored is not None and len(stored.shape) == 0 and not np.isnan(constants.numbers(stored))


class _Constants:
    """Constant nodes for bounds, one for each number of a graph."""

    def __init__(self, names: UniqueNames) -> None:
        self.names = names
        self._made: dict[tuple[ir.Graph, float], ir.Value] = {}

    def before(self, node: ir.Node, number: float) -> ir.Value:
        """The value of a number, for this node and those after it in its graph."""
        graph = graph_edits.graph_of(node)
        if (graph, number) not in self._made:
            tensor = ir.tensor(number, ir.DataType.FLOAT)
            constant = self.names.constant(node.outputs[0], "bound", tensor)
            value = constant.outputs[0]
            value.type, value.shape = FLOAT32, ir.Shape([])
            graph.insert_before(node, constant)
            self._made[graph, number] = value
        return self._made[graph, number]


def _replace(node: ir.Node, stored: _Constants) -> None:
    output = node.outputs[0]
    low = _bound(node, 1, "min", -_LARGEST, stored)
    high = _bound(node, 2, "max", _LARGEST, stored)
    above = ir.Node(
        "", "Max", [node.inputs[0], low], name=stored.names.of_node(f"{node.name or 'Clip'}__Max")
    )
    value = above.outputs[0]
    value.name, value.type, value.shape = stored.names.of_value(output, "max"), output.type, output.shape
    below = ir.Node("", "Min", [value, high], name=node.name, metadata_props=node.metadata_props)
    graph_edits.replace(node, [above, below], below.outputs[0])


def _bound(node: ir.Node, port: int, attribute: str, missing: float, stored: _Constants) -> ir.Value:
    """The value of a bound: an input, or the number that is stated or stands for a missing one."""
    value = node.inputs[port] if port < len(node.inputs) else None
    if value is not None:
        return value
    return stored.before(node, node.attributes.get_float(attribute, missing))


_LARGEST = float(np.finfo(np.float32).max)
