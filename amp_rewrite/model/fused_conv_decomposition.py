"""Fused nodes for which the target has no half kernel, taken apart into what they were fused from.

onnxruntime's optimiser for the CPU makes a FusedConv of a Conv, a bias, a residual and an activation. Its
CUDA provider has that in float32 alone, and half kernels for each of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.model.traversal import graphs
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.policy.targets import Target

_FUSED = ("com.microsoft", "FusedConv")


def decompose(model: ir.Model, target: Target, half: Half) -> None:
    """Takes apart the FusedConv nodes of a model, where the target has them in float32 alone.

    The first part has the node's name, the last makes its output; one with an activation that is not known
    here stays whole.
    """
    versions = element_types.versions(model.graph.opset_imports)
    signature = schema.find(*_FUSED, versions(_FUSED[0]))
    support = signature and target.support(*_FUSED, signature, half.name)
    if support is None or support.has("T", half.name):
        return
    found = [node for graph in graphs(model.graph) for node in graph if (node.domain, node.op_type) == _FUSED]
    names = UniqueNames(graphs(model.graph)) if found else None
    for node in found:
        if names is not None and _activation(node) in _ACTIVATIONS:
            _replace(node, list(_parts(node, versions(""), names)))


def _replace(node: ir.Node, parts: Sequence[ir.Node]) -> None:
    graph = node.graph
    assert graph is not None, "every node of a model is in a graph"
    ir.convenience.replace_nodes_and_values(graph, node, [node], parts, node.outputs, parts[-1].outputs)


def _activation(node: ir.Node) -> str:
    said = node.attributes.get("activation")
    return "" if said is None or said.is_ref() else said.as_string()


def _parts(node: ir.Node, opset: int, names: UniqueNames) -> Iterator[ir.Node]:
    convolved, residual = node.inputs[:3], node.inputs[3] if len(node.inputs) > 3 else None
    kept = [a for name, a in node.attributes.items() if not name.startswith("activation")]
    conv = ir.Node("", "Conv", convolved, kept, name=node.name)
    yield conv
    last = _named(conv, node, "conv", names)
    if residual is not None:
        add = ir.Node("", "Add", [last, residual], name=names.of_node(f"{node.name}__Add"))
        yield add
        last = _named(add, node, "sum", names)
    yield from _ACTIVATIONS[_activation(node)](node, last, opset, names)


def _named(part: ir.Node, node: ir.Node, suffix: str, names: UniqueNames) -> ir.Value:
    """What a part makes: a tensor of the type and shape of the whole."""
    made, whole = part.outputs[0], node.outputs[0]
    made.name, made.type, made.shape = names.of_value(whole, suffix), whole.type, whole.shape
    return made


Activate = Callable[[ir.Node, ir.Value, int, UniqueNames], Iterator[ir.Node]]
"""The nodes of an activation, the last of which makes what the fused node made."""


def _plain(*parameters: str) -> Activate:
    """The activation as a node of its own, with its parameters as attributes of these names."""

    def activate(node: ir.Node, last: ir.Value, _: int, names: UniqueNames) -> Iterator[ir.Node]:
        said = zip(parameters, _said(node), strict=False)
        attributes = [ir.AttrFloat32(name, value) for name, value in said]
        yield _last(_activation(node), [last], attributes, node, names)

    return activate


def _clip(node: ir.Node, last: ir.Value, opset: int, names: UniqueNames) -> Iterator[ir.Node]:
    """Its bounds are attributes before opset 11, and inputs since."""
    bounds = dict(zip(("min", "max"), _said(node), strict=False))
    if opset < _BOUNDS_ARE_INPUTS:
        attributes = [ir.AttrFloat32(name, value) for name, value in bounds.items()]
        yield _last("Clip", [last], attributes, node, names)
        return
    stored = [
        ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(value, ir.DataType.FLOAT))], name="")
        for value in bounds.values()
    ]
    for name, constant in zip(bounds, stored, strict=True):
        constant.outputs[0].name = names.of_value(node.outputs[0], name)
        constant.name = names.of_node(constant.outputs[0].name)
    yield from stored
    yield _last("Clip", [last, *(constant.outputs[0] for constant in stored)], [], node, names)


_BOUNDS_ARE_INPUTS = 11


def _last(
    operator: str,
    inputs: Sequence[ir.Value],
    attributes: Sequence[ir.Attr],
    node: ir.Node,
    names: UniqueNames,
) -> ir.Node:
    name = names.of_node(f"{node.name}__{operator}")
    return ir.Node("", operator, inputs, attributes, name=name)


def _said(node: ir.Node) -> Sequence[float]:
    parameters = node.attributes.get("activation_params")
    return () if parameters is None or parameters.is_ref() else parameters.as_floats()


_ACTIVATIONS: Mapping[str, Activate] = {
    "Relu": _plain(),
    "Sigmoid": _plain(),
    "Tanh": _plain(),
    "LeakyRelu": _plain("alpha"),
    "HardSigmoid": _plain("alpha", "beta"),
    "Clip": _clip,
}
"""What onnxruntime fuses (ConvActivationFusion), with the order of its parameters."""
