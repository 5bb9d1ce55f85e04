"""Outputs that a node leaves out at its end: onnx-ir leaves their places out as well."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from amp_rewrite.model import proto_walks
from amp_rewrite.onnx_types import control_flow


def put_back(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Puts the outputs back that a node leaves out at its end, and onnx-ir with it.

    A Loop has as many as its body, and a Split as many parts.
    """
    _put_outputs(model.graph, proto.graph.node)
    for function, made in zip(model.functions.values(), proto.functions, strict=True):
        _put_outputs(function, made.node)


def _put_outputs(nodes: ir.Graph | ir.Function, protos: Iterable[onnx.NodeProto]) -> None:
    if not _is_concerned(nodes):  # most are not, and their protos need no look
        return
    for node, proto in zip(nodes, protos, strict=True):
        if _leaves_out(node):
            proto.output.extend([""] * (len(node.outputs) - len(proto.output)))
        bodies = control_flow.bodies(node)
        for body, made in zip(bodies, proto_walks.bodies(proto) if bodies else (), strict=True):
            _put_outputs(body, made.node)


def _is_concerned(nodes: ir.Graph | ir.Function) -> bool:
    """Whether a node leaves an output out at its end, or has bodies, whose nodes may."""
    return any(map(_leaves_out, nodes)) or next(control_flow.inner(nodes), None) is not None


def _leaves_out(node: ir.Node) -> bool:
    outputs = node.outputs
    return bool(outputs) and not outputs[-1].name
