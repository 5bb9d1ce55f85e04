"""Shapes of values inferred by onnx, which runtimes need for fusions, and cost estimates for sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto, helper, numpy_helper

from amp_rewrite.model import constants, traversal
from amp_rewrite.model.node_inference import LIKE_FIRST, SUMS
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.open_sizes import Dims, OpenDimensions
from amp_rewrite.preparing import stored_values
from amp_rewrite.process import worker, worker_process

# ONNX nodes with the same output shapes as onnxruntime's own operators, which onnx cannot infer. They keep
# open dimensions and their names; `model.node_inference` does the same for static shapes. Values downstream
# of an operator that is missing here have no shape.

Naming = Callable[[ir.Value], str]
Nodes = Iterator[onnx.NodeProto]


def equivalent_nodes(node: ir.Node, name: Naming, types: Types) -> Nodes:
    """Yield nodes with the same output shapes and types, for outputs without a declared shape; none if no
    equivalent is known.
    """
    rule = _EQUIVALENTS.get(node.op_type) if node.domain in ("", CONTRIB) else None
    ports = _PORTS.get(node.op_type, (0,))
    outputs = [node.outputs[port] for port in ports if port < len(node.outputs)]
    if rule is None or not outputs or any(value.shape is not None for value in outputs):
        return
    like = f"{name(outputs[0])}//like"
    equivalents = list(rule(node, name, like))
    for value in outputs if equivalents else ():
        kind = types.get(value)
        if value.name and isinstance(kind, ir.TensorType):
            equivalents.append(helper.make_node("Cast", [like], [name(value)], to=int(kind.dtype)))
    yield from equivalents


def _first(node: ir.Node, name: Naming, like: str) -> Nodes:
    first = _input_at(node, 0)
    if first is not None:
        yield helper.make_node("Identity", [name(first)], [like])


def _unpacked(node: ir.Node, name: Naming, like: str) -> Nodes:
    """Yield an Identity of the queries if keys are separate: the result then has their shape."""
    if _input_at(node, 1) is not None:
        yield from _first(node, name, like)


def _embedding(node: ir.Node, name: Naming, like: str) -> Nodes:
    """Yield a Gather of rows of the word embedding, one for each identifier."""
    ids, words = _input_at(node, 0), _input_at(node, 2)
    if ids is not None and words is not None:
        yield helper.make_node("Gather", [name(words), name(ids)], [like])


def _product(node: ir.Node, name: Naming, like: str) -> Nodes:
    one, other = _input_at(node, 0), _input_at(node, 1)
    if one is None or other is None or any(schema.integer(node, f"transBatch{side}") for side in "AB"):
        return
    left = "ji" if schema.integer(node, "transA") else "ij"
    right = "kj" if schema.integer(node, "transB") else "jk"
    equation = f"...{left},...{right}->...ik"
    yield helper.make_node("Einsum", [name(one), name(other)], [like], equation=equation)


def _attention(node: ir.Node, name: Naming, like: str) -> Nodes:
    """Yield the product with a slice of the weights, which concatenate those of queries, keys and values."""
    data, weights = _input_at(node, 0), _input_at(node, 1)
    constant = weights.const_value if weights is not None else None
    if data is None or weights is None or constant is None or len(constant.shape) != 2:
        return
    sizes = node.attributes.get("qkv_hidden_sizes")
    is_given = sizes is not None and sizes.type == ir.AttributeType.INTS and sizes.value
    width = sizes.as_ints()[-1] if sizes is not None and is_given else constant.shape.numpy()[1] // 3
    bounds = [f"{like}{at}" for at in range(3)]
    for bound, number in zip(bounds, (0, width, 1), strict=True):  # from, to, along which axis
        tensor = numpy_helper.from_array(np.array([number], np.int64))
        yield helper.make_node("Constant", [], [bound], value=tensor)
    yield helper.make_node("Slice", [name(weights), *bounds], [f"{like}3"])
    yield helper.make_node("MatMul", [name(data), f"{like}3"], [like])


def _input_at(node: ir.Node, port: int) -> ir.Value | None:
    return node.inputs[port] if port < len(node.inputs) else None


_PORTS: Mapping[str, tuple[int, ...]] = dict.fromkeys(SUMS, (0, 3))
"""The outputs of that shape, for operators with several."""

_EQUIVALENTS: Mapping[str, Callable[[ir.Node, Naming, str], Nodes]] = {
    **dict.fromkeys(LIKE_FIRST, _first),
    "Attention": _attention,
    "EmbedLayerNormalization": _embedding,
    "FusedMatMul": _product,
    "GroupQueryAttention": _unpacked,
}


# Nodes for whose outputs onnx infers wrong shapes.


def is_wrongly_inferred(node: ir.Node) -> bool:
    """Return whether onnx 1.23 infers shapes for a node that are wrong, or differ from the runtimes'."""
    rule = None if node.domain else _WRONG_RULES.get(node.op_type)
    return rule is not None and rule(node)


def _has_sides_of_its_own(node: ir.Node) -> bool:
    """Return whether it is an STFT for which onnx assumes two sides, or 0 for an open batch."""
    signal = node.inputs[0]
    dims = signal.shape if signal is not None else None
    return "onesided" not in node.attributes or not dims or not isinstance(dims[0], int)


def _drops_axis(node: ir.Node) -> bool:
    """Return whether it is a SplitToSequence with `split` and `keepdims = 0`.

    onnx ignores the attribute there, but onnxruntime does not if the parts have one size. PyTorch's exporter
    writes `unbind` this way.
    """
    keepdims = node.attributes.get("keepdims")
    return (
        len(node.inputs) > 1 and node.inputs[1] is not None and keepdims is not None and keepdims.value == 0
    )


_WRONG_RULES: Mapping[str, Callable[[ir.Node], bool]] = {
    "STFT": _has_sides_of_its_own,
    "SplitToSequence": _drops_axis,
}


# A model without its weights for onnx's shape inference: its structure, and the data of small tensors.

SMALL = 1 << 7
"""The largest number of elements of a tensor that keeps its data: shapes and axes are among these."""

_UNKNOWN = "amp_rewrite.unknown"
"""A domain unknown to onnx, for nodes that its inference must skip."""

_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True, slots=True)
class Structure:
    """The model, and the name of each value in it."""

    proto: onnx.ModelProto
    name: Naming


def build_structure(model: ir.Model, nodes: GraphNodes, types: Types) -> Structure:
    """Return the structure of a model, whose graphs have these nodes, with declarations of values only where
    onnx cannot infer them.

    With several graphs, values get new names, since two graphs may use the same ones.
    """
    name = _numbered() if len(nodes) > 1 else _name
    imports = model.graph.opset_imports
    builder = _Builder(nodes, types, name, element_types.versions(imports))
    versions = {**imports, _UNKNOWN: 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    version = max(model.ir_version, constants.CONSTANT_INPUTS_BELOW)  # constants are not inputs
    proto = onnx.ModelProto(ir_version=version, opset_import=opsets, graph=builder.graph(model.graph))
    return Structure(proto, name)


def _name(value: ir.Value) -> str:
    return value.name or ""


def _numbered() -> Naming:
    names: dict[ir.Value, str] = {}
    return lambda value: names.setdefault(value, f"v{len(names)}") if value.name else ""


def _is_small(dims: Sequence[int]) -> bool:
    return prod(dims) <= SMALL


class _Builder:
    def __init__(self, nodes: GraphNodes, types: Types, name: Naming, version: Callable[[str], int]) -> None:
        self._nodes, self._types, self._name = nodes, types, name
        self._schema = functools.cache(lambda domain, op: schema.of_onnx(domain, op, version(domain)))

    def graph(self, graph: ir.Graph) -> onnx.GraphProto:
        proto = onnx.GraphProto(name="g")
        proto.input.extend(self._declared(value) for value in graph.inputs if not value.is_initializer())
        proto.output.extend(onnx.ValueInfoProto(name=self._name(value)) for value in graph.outputs)
        for value in graph.initializers.values():
            self._store(proto, value, value.const_value)
        for node in self._nodes[graph]:
            self._node(proto, node)
        return proto

    def _declared(self, value: ir.Value) -> onnx.ValueInfoProto:
        """Return the declaration of a value; a shape without a type is dropped."""
        kind = self._types.get(value)
        info = onnx.ValueInfoProto(name=self._name(value))
        if isinstance(kind, ir.TensorType):
            info.type.tensor_type.elem_type = kind.dtype
            if value.shape is not None:
                ir.serde.serialize_shape_into(info.type, value.shape)
        elif kind is not None:
            info.type.CopyFrom(ir.serde.serialize_type(kind))
        return info

    def _store(self, proto: onnx.GraphProto, value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
        if tensor is None:
            return
        name, raw = self._name(value), tensor.raw if isinstance(tensor, ir.serde.TensorProtoTensor) else None
        dims = tensor.shape.numpy() if raw is None else raw.dims
        if not _is_small(dims) or not stored_values.is_number(tensor.dtype):
            proto.value_info.append(helper.make_tensor_value_info(name, int(tensor.dtype), dims))
        elif raw is None:
            proto.initializer.append(onnx.numpy_helper.from_array(constants.read_whole(tensor), name))
        else:
            proto.initializer.add().CopyFrom(raw)  # five times as fast as converting its values
            proto.initializer[-1].MergeFrom(onnx.TensorProto(name=name))

    def _node(self, proto: onnx.GraphProto, node: ir.Node) -> None:
        tensor = constants.constant(node)
        if tensor is not None:
            self._store(proto, node.outputs[0], tensor)
            return
        name = self._name
        is_wrong = is_wrongly_inferred(node)
        is_known = not is_wrong and self._schema(node.domain, node.op_type) is not None
        alike = [] if is_known else list(equivalent_nodes(node, name, self._types))
        if alike:
            proto.node.extend(alike)
            return
        node_proto = proto.node.add(
            op_type=node.op_type,
            domain=_UNKNOWN if is_wrong else node.domain,
            input=[name(value) if value is not None else "" for value in node.inputs],
            output=[name(value) for value in node.outputs],
        )
        has_bodies = control_flow.may_have_bodies(node)
        for attribute in node.attributes.values():
            if not attribute.is_ref() and (has_bodies or attribute.type not in _BODIES):
                self._attribute(node_proto, attribute)
        if not is_known:
            proto.value_info.extend(self._declared(value) for value in node.outputs if value.name)

    def _attribute(self, node: onnx.NodeProto, attribute: ir.Attr) -> None:
        kind = attribute.type
        if kind == ir.AttributeType.GRAPH:
            node.attribute.add(
                name=attribute.name, type=AttributeProto.GRAPH, g=self.graph(attribute.as_graph())
            )
        elif kind == ir.AttributeType.GRAPHS:
            bodies = map(self.graph, attribute.as_graphs())
            node.attribute.add(name=attribute.name, type=AttributeProto.GRAPHS, graphs=bodies)
        elif kind == ir.AttributeType.INT:  # faster than onnx-ir, and most attributes are integers
            node.attribute.add(name=attribute.name, type=AttributeProto.INT, i=attribute.value)
        elif kind == ir.AttributeType.INTS:
            node.attribute.add(name=attribute.name, type=AttributeProto.INTS, ints=attribute.value)
        else:
            node.attribute.append(ir.serde.serialize_attribute(attribute))


# Values whose number of elements depends on data, and may be 0.

COUNTING = having(Trait.COUNTS)
"""Operators with an output size that depends on data."""


def values_of_counted_size(graph: ir.Graph, nodes: GraphNodes) -> set[ir.Value]:
    """Return the outputs of these operators and all values downstream, in a graph and its bodies."""
    values: set[ir.Value] = set()
    if any(node.op_type in COUNTING for graph_nodes in nodes.values() for node in graph_nodes):
        _follow(graph, nodes, values)
    return values


def _follow(graph: ir.Graph, nodes: GraphNodes, values: set[ir.Value]) -> None:
    for node in nodes[graph]:
        is_reached = node.op_type in COUNTING or not values.isdisjoint(node.inputs)
        for body in control_flow.bodies(node):
            if is_reached:
                values.update(body.inputs)
            _follow(body, nodes, values)
            is_reached = is_reached or not values.isdisjoint(body.outputs)
        if is_reached:
            values.update(node.outputs)


MOST_NODES = 50_000
"""The largest number of nodes for which shapes are inferred: the inference takes about a sixth of a rewrite,
more than all other steps of preparation.
"""


def infer_shapes(model: ir.Model, types: Types) -> None:
    """Set the shapes and types of node outputs to those that onnx infers.

    A declared shape stays if it is at least as exact; one that contradicts the inferred shape is replaced.
    Outputs of graphs keep their declarations. Nothing changes if onnx fails, or above MOST_NODES. Dimensions
    that may be 0 get no generated names: onnxruntime reshapes to [0, -1] where it knows that a dimension
    stays the same (ReshapeFusion), and that fails for values without elements.
    """
    nodes = traversal.nodes(model.graph) if len(model.graph) <= MOST_NODES else {}
    if not nodes or sum(map(len, nodes.values())) > MOST_NODES:
        return
    for value in (value for graph_nodes in nodes.values() for node in graph_nodes for value in node.outputs):
        _forget_made_up(value)
    structure = build_structure(model, nodes, types)
    is_shown = any(dim is None for output in model.graph.outputs for dim in _dims(output.shape) or (None,))
    names = _Names.NONE if _has_slice_10(model, nodes) else _Names.GIVEN if is_shown else _Names.ALL
    dynamic_values = values_of_counted_size(model.graph, nodes) if names is _Names.ALL else set[ir.Value]()
    for value, kind in _inferred(structure, nodes):
        if not value.is_graph_output():
            _declare(value, kind, types, _Names.GIVEN if value in dynamic_values else names)


def _inferred(structure: Structure, nodes: GraphNodes) -> Iterator[tuple[ir.Value, onnx.TypeProto.Tensor]]:
    """Yield the node outputs, each with the type that onnx infers for it."""
    graphs = worker.infer(worker_process.infer_values, structure.proto.SerializeToString()) or []
    for inner, inferred in zip(nodes.values(), graphs, strict=False):
        infos = {info.name: info.type for info in onnx.GraphProto.FromString(inferred).value_info}
        for value in (value for node in inner for value in node.outputs):
            kind = infos.get(structure.name(value))
            if kind is not None:
                yield value, kind.tensor_type


def sized(model: ir.Model, types: Types, dims: Dims) -> dict[ir.Value, ir.Shape]:
    """Return the shapes of values for these sizes of the inputs' open dimensions; empty without any.

    Raises OptionError when `dims` names a dimension that is not open, or gives one axis two sizes.
    """
    open_dimensions = OpenDimensions(model.graph, dims)
    if not dims:
        return {}
    nodes = traversal.nodes(model.graph)
    outputs = (value for inner in nodes.values() for node in inner for value in node.outputs)
    shapes = {value: open_dimensions.given_shape(value) for value in (*model.graph.inputs, *outputs)}
    if sum(map(len, nodes.values())) <= MOST_NODES:
        structure = build_structure(model, nodes, types)
        graph = structure.proto.graph
        infos = {info.name: info for info in (*graph.input, *graph.value_info)}
        for value, shape in shapes.items():
            info = infos.get(structure.name(value))
            if info is not None and shape is not None and info.type.HasField("tensor_type"):
                ir.serde.serialize_shape_into(info.type, shape)
        for value, kind in _inferred(structure, nodes):
            if kind.HasField("shape"):
                inferred = tuple(_dimension(dim, _Names.ALL) for dim in kind.shape.dim)
                declared = _dims(shapes[value])
                shapes[value] = ir.Shape(inferred if declared is None else _merged(declared, inferred))
    return {value: shape for value, shape in shapes.items() if shape is not None}


_Dims = tuple[int | str | None, ...]


class _Names(Enum):
    """The names of inferred dimensions that a value gets: runtimes treat dimensions of one name as equal."""

    NONE = "none"
    GIVEN = "given by the model"
    ALL = "made up by onnx as well"


def _has_slice_10(model: ir.Model, nodes: GraphNodes) -> bool:
    """Return whether inferred names are wrong: at opset 10, a slice gets the dimension name of the whole."""
    if element_types.default_opset(model.graph.opset_imports) != _WRONG_SLICE:
        return False
    return any(node.op_type == "Slice" for graph_nodes in nodes.values() for node in graph_nodes)


_WRONG_SLICE = 10
"""The version of Slice whose inference copies the names of the dimensions that it cuts (onnx 1.23)."""

_MADE_UP = "unk__"


def _forget_made_up(value: ir.Value) -> None:
    """Remove names that an earlier inference generated: ours generates the same ones for other dimensions."""
    dims = None if value.is_graph_output() else _dims(value.shape)
    if dims is not None:
        dimensions = [None if isinstance(dim, str) and dim.startswith(_MADE_UP) else dim for dim in dims]
        value.shape = value.shape if dimensions == list(dims) else ir.Shape(dimensions)


def _declare(value: ir.Value, inferred: onnx.TypeProto.Tensor, types: Types, names: _Names) -> None:
    """Set the shape of a value, unless onnx infers another type than we do.

    The names that onnx generates tell a runtime which dimensions are equal. The runtime also propagates them
    to outputs of the model whose dimensions have no names, where they would be new.
    """
    kind = types.get(value)
    if not inferred.HasField("shape") or type(kind) is not ir.TensorType or kind.dtype != inferred.elem_type:
        return
    dims = tuple(_dimension(dim, names) for dim in inferred.shape.dim)
    declared = _dims(value.shape)
    merged = dims if declared is None else _merged(declared, dims)
    if merged != declared:
        value.shape = ir.Shape(merged)
    value.type = value.type or kind


def _dimension(dim: onnx.TensorShapeProto.Dimension, names: _Names) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value or None  # onnx infers 0 for some open dimensions, as in Attention
    is_made_up = dim.dim_param.startswith(_MADE_UP)
    is_kept = names is _Names.ALL or (names is _Names.GIVEN and not is_made_up)
    return dim.dim_param or None if is_kept else None


def _dims(shape: ir.Shape | None) -> _Dims | None:
    if shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


def _merged(declared: _Dims, inferred: _Dims) -> _Dims:
    """Return the more exact of the two in each dimension; the inferred one if they contradict each other."""
    pairs = list(zip(declared, inferred, strict=False))
    apart = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    if apart or len(declared) != len(inferred):
        return inferred
    return tuple(b if a is None or isinstance(b, int) else a for a, b in pairs)
