"""Writes an Add of a negative as a Sub: `b + (-a)` as `b - a`, with the same bits, in one node.

PyTorch's TorchScript exporter writes `1 - a` with both. No provider of onnxruntime joins them.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.norm_roots import is_plain, maker, only_reader

_BROADCASTS = 7
"""From this opset on the operands of a Sub are broadcast."""


def write(model: ir.Model, kept: Container[ir.Node]) -> tuple[FormChange, ...]:
    """Writes these sums as differences, but for nodes that are `kept`, and negatives that others read."""
    if element_types.default_opset(model.graph.opset_imports) < _BROADCASTS:
        return ()
    changes: list[FormChange] = []
    for node in [node for graph in graphs(model.graph) for node in graph if is_plain(node, "Add")]:
        port = _negative(node, kept)
        if port is not None:
            changes.append(_subtract(node, port))
    return tuple(changes)


def _negative(node: ir.Node, kept: Container[ir.Node]) -> int | None:
    """The port at which an Add alone reads a negative that is made in its graph; None where there is none, or
    both terms are negatives.
    """
    ports = [port for port, value in enumerate(node.inputs) if _source(value, "Neg") is not None]
    negative = maker(node.inputs[ports[0]], "Neg") if len(ports) == 1 and node not in kept else None
    if negative is None or negative in kept or negative.graph is not node.graph:
        return None
    return ports[0] if only_reader(negative.outputs[0]) is node else None


def _source(value: ir.Value | None, operator: str) -> ir.Node | None:
    """The node that makes a value, if it is this operator, Casts and Identities aside."""
    node = value.producer() if value is not None else None
    while node is not None and (is_plain(node, "Cast") or is_plain(node, "Identity")):
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return node if node is not None and is_plain(node, operator) else None


def _subtract(node: ir.Node, port: int) -> FormChange:
    graph, value, negative = node.graph, node.outputs[0], maker(node.inputs[port], "Neg")
    assert graph is not None, "every node of a model is in a graph"
    assert negative is not None, "a negative was found here"
    change = FormChange(FormChangeKind.DIFFERENCE, pinned_as(negative), into=pinned_as(node))
    difference = ir.Node("", "Sub", [node.inputs[1 - port], negative.inputs[0]], name=node.name)
    left = difference.outputs[0]
    left.name, left.type, left.shape = value.name, value.type, value.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], [difference], [value], [left])
    graph.remove(negative, safe=True)
    return change
