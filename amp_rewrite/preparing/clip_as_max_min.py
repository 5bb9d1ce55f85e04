"""Writes Clip as Max and Min where the target has half kernels for these and none for Clip.

onnxruntime's CUDA provider has none in float16 before opset 12, and none in bfloat16 at all. Both forms give
the same bits, NaN and infinities included, but for one: Clip keeps a zero's sign where a bound is zero, and
Max and Min need not. A bound that is missing is the largest number of float32, as it is for Clip.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import constants, traversal
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing import half_ports
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.half_ports import Call, HalfPorts



def rewrite(model: ir.Model, form: Form, kept: Collection[ir.Node]) -> tuple[FormChange, ...]:
    """Rewrites the float32 Clips beside what can be half, but for those that are kept.

    The Min takes the node's name. Bounds that are computed stay what they are; one that is not known to be a
    scalar keeps its Clip.
    """
    nodes = [node for held in traversal.nodes(model.graph).values() for node in held if not node.domain]
    clips = [node for node in nodes if node.op_type == "Clip" and node not in kept]
    half = _HalfNodes(form, element_types.default_opset(model.graph.opset_imports))
    if not form.raise_opset or not clips or not half.prefers_max_and_min() or not any(map(half.starts, nodes)):
        return ()
    types = element_types.infer(model)
    chosen = [node for node in clips if half.is_beside(node) and _is_known(node, types)]
    stored = _Constants(UniqueNames(traversal.graphs(model.graph)))
    for node in chosen:
        _replace(node, stored)
    return tuple(FormChange(FormChangeKind.MAX_AND_MIN, node=pinned_as(node)) for node in chosen)


class _HalfNodes:
    """Which nodes of a model can be half, at its opset."""

    def __init__(self, form: Form, version: int) -> None:
        self._ports, self._version = HalfPorts(form), version

    def prefers_max_and_min(self) -> bool:
        """Whether Max and Min can be half, and Clip cannot."""
        most = [self._ports.of(call, self._version) for call in (_CLIP, _MAX, _MIN)]
        return not most[0] and bool(most[1] and most[2])

    def starts(self, node: ir.Node) -> bool:
        """Whether a node can be half, and makes others so."""
        return self._ports.starts(node.op_type) and self._can(node)

    def is_beside(self, node: ir.Node) -> bool:
        """Whether what makes a node's data, or reads its result, can be half."""
        data, result = node.inputs[0], node.outputs[0]
        maker = data.producer() if data is not None else None
        return any(map(self._can, (*([maker] if maker else ()), *result.consumers())))

    def _can(self, node: ir.Node) -> bool:
        """An operator of another domain counts: whether it can depends on its kernels alone."""
        return bool(node.domain or self._ports.of(half_ports.call(node), self._version))


_CLIP, _MAX, _MIN = Call("Clip", 1, 1), Call("Max", 2, 1), Call("Min", 2, 1)


def _is_known(node: ir.Node, types: Types) -> bool:
    """Whether a Clip has float32 data, and bounds that are absent, numbers, or scalars."""
    data = node.inputs[0] if node.inputs else None
    if data is None or types.get(data) != _FLOAT32 or len(node.outputs) != 1:
        return False
    stated = all(a.type == ir.AttributeType.FLOAT and not a.is_ref() for a in node.attributes.values())
    return stated and all(value is None or _is_scalar(value) for value in node.inputs[1:])


def _is_scalar(value: ir.Value) -> bool:
    stored = constants.stored_as(value)
    shape = value.shape if stored is None else stored.shape
    return shape is not None and len(shape) == 0


class _Constants:
    """Constant nodes for bounds, one for each number of a graph."""

    def __init__(self, names: UniqueNames) -> None:
        self.names = names
        self._made: dict[tuple[ir.Graph, float], ir.Value] = {}

    def before(self, node: ir.Node, number: float) -> ir.Value:
        """The value of a number, for this node and those after it in its graph."""
        graph = _graph(node)
        if (graph, number) not in self._made:
            stored = ir.AttrTensor("value", ir.tensor(number, ir.DataType.FLOAT))
            constant = ir.Node("", "Constant", [], [stored])
            value = constant.outputs[0]
            value.name = self.names.of_value(node.outputs[0], "bound")
            value.type, value.shape = _FLOAT32, ir.Shape([])
            constant.name = self.names.of_node(value.name)
            graph.insert_before(node, constant)
            self._made[graph, number] = value
        return self._made[graph, number]


def _graph(node: ir.Node) -> ir.Graph:
    graph = node.graph
    assert isinstance(graph, ir.Graph), "every node of a model is in a graph"
    return graph


def _replace(node: ir.Node, stored: _Constants) -> None:
    output = node.outputs[0]
    low = _bound(node, 1, "min", -_LARGEST, stored)
    high = _bound(node, 2, "max", _LARGEST, stored)
    above = ir.Node("", "Max", [node.inputs[0], low], name=stored.names.of_node(f"{node.name or 'Clip'}__Max"))
    value = above.outputs[0]
    value.name, value.type, value.shape = stored.names.of_value(output, "max"), output.type, output.shape
    below = ir.Node("", "Min", [value, high], name=node.name, metadata_props=node.metadata_props)
    ir.convenience.replace_nodes_and_values(_graph(node), node, [node], [above, below], [output], below.outputs)


def _bound(node: ir.Node, port: int, attribute: str, missing: float, stored: _Constants) -> ir.Value:
    """The value of a bound: an input, or the number that is stated or stands for a missing one."""
    value = node.inputs[port] if port < len(node.inputs) else None
    if value is not None:
        return value
    stated = node.attributes.get(attribute)
    return stored.before(node, missing if stated is None else stated.as_float())


_FLOAT32 = ir.TensorType(ir.DataType.FLOAT)
_LARGEST = float(np.finfo(np.float32).max)
