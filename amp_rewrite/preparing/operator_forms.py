"""Rewrites of norms, Clips and fused convolutions to forms for which the target has kernels.

A norm is written with Pow and Div, which onnxruntime fuses. A Clip is written as Max and Min where the
target has half kernels for these and none for Clip: onnxruntime's CUDA provider has none in float16 before
opset 12, and none in bfloat16 at all. Both forms give the same bits, NaN and infinities included, but for
one: Clip keeps a zero's sign where a bound is zero, and Max and Min need not. A bound that is missing is the
largest number of float32, as it is for Clip.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import constants, graph_edits, patterns, traversal
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.graph_edits import UniqueNames
from amp_rewrite.model.patterns import Pattern, either, fits, number, op, part, var
from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators import catalogue
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.policy.options import Form
from amp_rewrite.policy.targets import Target
from amp_rewrite.preparing import form_changes, half_ports
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.half_ports import FLOAT32, HalfPorts

# Decomposed norms, in the form that onnxruntime fuses.


def _is_epsilon(value: ir.Value) -> bool:
    """Return whether a value is a stored float32 number; both operands of an Add have one type."""
    tensor = stored_as(value)
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size == 1


def root_of(mean: Pattern) -> Pattern:
    """Return a pattern of the root of a mean plus an epsilon."""
    return op("Sqrt", op("Add", mean, fits(_is_epsilon)))


def quotient(data: Pattern, divisor: Pattern) -> Pattern:
    """Return a pattern of data over a divisor, by a Div or a product with the inverse."""
    return either(op("Div", data, divisor), op("Mul", data, op("Div", number(1.0), divisor)))


_ITSELF: frozenset[str] = frozenset()
"""The operators that onnxruntime looks through between two nodes: none."""

# Sqrt(ReduceMean(d * d) + epsilon) becomes Sqrt(ReduceMean(Pow(d, 2)) + epsilon): onnxruntime 1.31.1 fuses
# such a norm with a weight only if the square is a Pow, not a Mul, even in float32. `d` may be the data less
# their mean: followed by a bias, it is a LayerNormalization. The fused kernel squares by a multiplication.

_X = var("x")
_SQUARES = part("square", op("Mul", _X, _X))
_WEIGHTED = op(
    "Mul", quotient(_X, root_of(op("ReduceMean", _SQUARES))), fits(lambda value: stored_as(value) is not None)
)


def _square(root: ir.Node) -> ir.Node | None:
    """Return the product of a value with itself under the root of a norm with a weight; None elsewhere."""
    for end in patterns.ends_behind(root, 4) if patterns.is_default(root, "Sqrt") else ():
        match = patterns.match(_WEIGHTED, end.outputs[0], _ITSELF)
        if match is not None and root in match.nodes and patterns.are_closed(match.nodes, end):
            return match.parts["square"][0]
    return None


def _raise(node: ir.Node, names: UniqueNames) -> None:
    two = names.constant(node.outputs[0], "two", ir.tensor(2.0, ir.DataType.FLOAT))
    graph_edits.replace_by(node, "Pow", [node.inputs[0], two.outputs[0]], two)


# x * Reciprocal(root) becomes x * (1 / root): onnxruntime 1.31.1 fuses x / root and x * (1 / root) to a
# SimplifiedLayerNormalization, but not a Reciprocal, even in float32. Both round the exact quotient once:
# they are bit-identical.


def _inverse(node: ir.Node) -> ir.Node | None:
    """Return a node that inverts the root of a float32 mean, and whose only consumer is a Mul; else None."""
    if not patterns.is_default(node, "Reciprocal"):
        return None
    root, readers = node.inputs[0], node.outputs[0].uses()
    scales = len(readers) == 1 and all(patterns.is_default(reader, "Mul") for reader, _ in readers)
    return node if scales and root is not None and patterns.match(_ROOT, root, _ITSELF) is not None else None


_ROOT = root_of(op("ReduceMean"))


def _divide(node: ir.Node, names: UniqueNames) -> None:
    one = names.constant(node.outputs[0], "one", ir.tensor(1.0, ir.DataType.FLOAT))
    graph_edits.replace_by(node, "Div", [one.outputs[0], node.inputs[0]], one)


_NORMS = (
    (FormChangeKind.RECIPROCAL, _inverse, _divide),
    (FormChangeKind.SQUARE, _square, _raise),
)
_BROADCASTS = 7
"""The first opset at which the operands of a Div or a Pow are broadcast."""


def rewrite_norms(model: ir.Model, exclusions: Container[ir.Node]) -> Iterator[FormChange]:
    """Rewrite norms to the forms that runtimes fuse, except nodes in `exclusions`; yield the changes."""
    if element_types.default_opset(model.graph.opset_imports) < _BROADCASTS:
        return
    for kind, find, write in _NORMS:
        matches = map(find, every_node(model.graph))
        nodes = [node for node in matches if node is not None and node not in exclusions]
        names = UniqueNames(graphs(model.graph) if nodes else ())
        yield from [FormChange(kind, pinned_as(node)) for node in nodes]
        for node in nodes:
            write(node, names)


# Clips as a Max and a Min.


def rewrite_clips(model: ir.Model, form: Form) -> tuple[FormChange, ...]:
    """Rewrite float32 Clips between nodes that will likely be half (half_ports), unless they are excluded
    (form_changes).

    The Min takes the node's name. A Clip with a bound that is computed, or no scalar, is not rewritten.
    """
    nodes = traversal.nodes(model.graph)
    clips = [node for inner in nodes.values() for node in inner if half_ports.is_clip(node)]
    version_of, ports = element_types.versions(model.opset_imports), HalfPorts(form)
    version = version_of("")
    if not form.raise_opset or not clips or not ports.prefers_max_and_min(version):
        return ()
    if version < _EXTREMES_BROADCAST:
        return ()
    types, exclusions = element_types.infer(model), form_changes.nodes_to_preserve(model, form)
    half = half_ports.predict_outlook(nodes, types, ports, version_of).half
    clips = [node for node in clips if node not in exclusions and _is_between(node, half, types)]
    names = map(pinned_as, clips)
    changes = tuple(FormChange(FormChangeKind.MAX_AND_MIN, name, into=name) for name in names)
    bounds: _Bounds = {}
    unique = UniqueNames(traversal.graphs(model.graph))
    for node in clips:
        _replace(node, unique, bounds)
    return changes


_EXTREMES_BROADCAST = 8
"""The opset from which operands of Max and Min may differ in shape."""


def _is_between(node: ir.Node, half: Collection[ir.Node], types: Types) -> bool:
    """Return whether the producer of a Clip's float32 data will be half, and a consumer of its result, if
    any, and its bounds are absent or constant scalars other than NaN, which a Clip ignores.
    """
    data, readers = node.inputs[0], node.outputs[0].consumers()
    if data is None or types.get(data) != FLOAT32 or data.producer() not in half:
        return False
    stated = (
        a.type == ir.AttributeType.FLOAT and not a.is_ref() and not math.isnan(a.as_float())
        for a in node.attributes.values()
    )
    is_known = all(stated) and all(value is None or _is_number(value) for value in node.inputs[1:])
    return is_known and (not readers or any(reader in half for reader in readers))


def _is_number(value: ir.Value) -> bool:
    """Return whether a value is a constant scalar other than NaN, which no caller can override."""
    tensor = None if value.is_graph_input() else constants.stored_as(value)
    return tensor is not None and len(tensor.shape) == 0 and not np.isnan(constants.numbers(tensor))


def _replace(node: ir.Node, names: UniqueNames, bounds: _Bounds) -> None:
    low, high = (_bound(node, *each, names, bounds) for each in ((1, "min", -_LARGEST), (2, "max", _LARGEST)))
    above = ir.Node("", "Max", [node.inputs[0], low], name=names.of_node(f"{node.name or 'Clip'}__Max"))
    value = _output(above, node, "max", names)
    below = ir.Node("", "Min", [value, high], name=node.name, metadata_props=node.metadata_props)
    graph_edits.replace(node, [above, below], below.outputs[0])


_LARGEST = float(np.finfo(np.float32).max)
_Bounds = dict[tuple[ir.Graph, float], ir.Value]
"""The constant of each number of a graph."""


def _bound(
    node: ir.Node, port: int, attribute: str, missing: float, names: UniqueNames, bounds: _Bounds
) -> ir.Value:
    """Return a bound as a value: the input, or a constant of the attribute or of the default."""
    value = node.inputs[port] if port < len(node.inputs) else None
    if value is not None:
        return value
    key = graph_edits.graph_of(node), node.attributes.get_float(attribute, missing)
    if key not in bounds:
        constant = names.constant(node.outputs[0], "bound", ir.tensor(key[1], ir.DataType.FLOAT))
        bounds[key] = constant.outputs[0]
        bounds[key].type, bounds[key].shape = FLOAT32, ir.Shape([])
        key[0].insert_before(node, constant)
    return bounds[key]


# FusedConv as its original operators, where the target has no half kernel for it: onnxruntime's CPU optimiser
# fuses a Conv, a bias, a residual and an activation. Its CUDA provider has only a float32 kernel for that,
# but half kernels for each of the parts.

_FUSED = ("com.microsoft", "FusedConv")


def decompose_fused_convs(model: ir.Model, target: Target, half: Half) -> None:
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
