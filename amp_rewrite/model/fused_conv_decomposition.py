"""Decomposition of FusedConv into its original operators, where the target has no half kernel for it.

onnxruntime's CPU optimiser fuses a Conv, a bias, a residual and an activation into a FusedConv. Its CUDA
provider has only a float32 kernel for that, but half kernels for each of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from amp_rewrite.model import graph_edits
from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.operators import catalogue
from amp_rewrite.policy.targets import Target

_FUSED = ("com.microsoft", "FusedConv")


def decompose(model: ir.Model, target: Target, half: Half) -> None:
    """Decompose the FusedConv nodes of a model, if the target has only float32 kernels for them.

    The Conv takes the node's name, and the last part its output. A node with an unknown activation stays.
    """
    versions = element_types.versions(model.graph.opset_imports)
    signature = schema.find(*_FUSED, versions(_FUSED[0]))
    support = signature and target.support(*_FUSED, signature, half.name)
    if support is None or support.has("T", half.name):
        return
    fused_convs = [node for node in every_node(model.graph) if (node.domain, node.op_type) == _FUSED]
    names = UniqueNames(graphs(model.graph))
    for node in fused_convs:
        if _parameters(node) is not None:
            parts = list(_parts(node, versions(""), names))
            graph_edits.replace(node, parts, parts[-1].outputs[0])


def _parts(node: ir.Node, opset: int, names: UniqueNames) -> Iterator[ir.Node]:
    inputs, residual = node.inputs[:3], node.inputs[3] if len(node.inputs) > 3 else None
    attributes = [a for name, a in node.attributes.items() if not name.startswith("activation")]
    conv = ir.Node("", "Conv", inputs, attributes, name=node.name)
    yield conv
    last = _output(conv, node, "conv", names)
    if residual is not None:
        add = _part("Add", [last, residual], [], node, names)
        yield add
        last = _output(add, node, "sum", names)
    yield from _activation(node, last, opset, names)


def _part(
    operator: str,
    inputs: Sequence[ir.Value],
    own: Sequence[ir.Attr],
    node: ir.Node,
    names: UniqueNames,
) -> ir.Node:
    return ir.Node("", operator, inputs, own, name=names.of_node(f"{node.name}__{operator}"))


def _output(part: ir.Node, node: ir.Node, suffix: str, names: UniqueNames) -> ir.Value:
    """Return the output of a part, with the type and shape of the fused node's output."""
    value, whole = part.outputs[0], node.outputs[0]
    value.name, value.type, value.shape = names.of_value(whole, suffix), whole.type, whole.shape
    return value


def _activation(node: ir.Node, last: ir.Value, opset: int, names: UniqueNames) -> Iterator[ir.Node]:
    """Yield an activation; the bounds of a Clip are attributes before opset 11, and inputs since."""
    operator = schema.text(node, "activation")
    numbers = schema.numbers(node, "activation_params")
    parameters = list(zip(_parameters(node) or (), numbers, strict=False))
    if operator != "Clip" or opset < _BOUNDS_ARE_INPUTS:
        yield _part(operator, [last], [ir.AttrFloat32(*each) for each in parameters], node, names)
        return
    bounds: list[ir.Value] = []
    for name, value in parameters:
        constant = names.constant(node.outputs[0], name, ir.tensor(value, ir.DataType.FLOAT))
        bounds.append(constant.outputs[0])
        yield constant
    yield _part(operator, [last, *bounds], [], node, names)


def _parameters(node: ir.Node) -> tuple[str, ...] | None:
    """Return the parameters of the activation that onnxruntime fused (ConvActivationFusion), in order; None
    for another one.
    """
    return catalogue.find("", schema.text(node, "activation")).activation


_BOUNDS_ARE_INPUTS = 11
