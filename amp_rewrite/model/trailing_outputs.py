"""Outputs that a node leaves out at its end: onnx-ir leaves their places out as well."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from amp_rewrite.model import proto_traversal
from amp_rewrite.onnx_types import control_flow


def are_in(graphs: Iterable[ir.Graph]) -> bool:
    """Whether a node of these leaves outputs out at its end."""
    last = (value for graph in graphs for node in graph for value in node.outputs[-1:])
    return any(not value.name for value in last)


def put_back(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Puts the outputs back that a node leaves out at its end, and onnx-ir with it.

    A Loop has as many as its body, and a Split as many parts.
    """
    _put_outputs(model.graph, proto.graph.node)
    for function, made in zip(model.functions.values(), proto.functions, strict=True):
        _put_outputs(function, made.node)


def _put_outputs(nodes: Iterable[ir.Node], protos: Iterable[onnx.NodeProto]) -> None:
    for node, proto in zip(nodes, protos, strict=True):
        if node.outputs and not node.outputs[-1].name:
            proto.output.extend([""] * (len(node.outputs) - len(proto.output)))
        bodies = control_flow.bodies(node)
        for body, made in zip(bodies, proto_traversal.bodies(proto) if bodies else (), strict=True):
            _put_outputs(body, made.node)
