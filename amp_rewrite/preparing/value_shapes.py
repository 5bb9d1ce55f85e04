"""Shapes of values inferred by onnx, which runtimes need for fusions, and cost estimates for sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import AttributeProto, helper

from amp_rewrite.model import constants, dataflow, proto_traversal, traversal
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait
from amp_rewrite.policy.open_sizes import Dims, OpenDimensions
from amp_rewrite.preparing.equivalents import Naming, equivalent_nodes, is_wrongly_inferred
from amp_rewrite.process import worker

# A model without its weights for onnx's shape inference: its structure, and the data of small tensors.

Array = NDArray[Any]

SMALL = 1 << 7
"""The largest number of elements of a tensor that keeps its data: shapes and axes are among these."""

_UNKNOWN = "amp_rewrite.unknown"
"""A domain unknown to onnx, for nodes that its inference must skip."""

_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _declared_shape(value: ir.Value) -> ir.Shape | None:
    return value.shape


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """What is known of values beyond the model: shapes in place of the declared ones, and contents. The
    shapes of those in `beyond` are more than what onnx infers, and outputs of `settled` nodes need none.
    """

    shape: Callable[[ir.Value], ir.Shape | None] = _declared_shape
    contents: Mapping[ir.Value, Array] = field(default_factory=dict["ir.Value", "Array"])
    beyond: Container[ir.Value] = frozenset()
    settled: Collection[ir.Node] = frozenset()

    def is_read(self, value: ir.Value) -> bool:
        """Return whether a node that is not settled reads a value."""
        return not self.settled or any(node not in self.settled for node, _ in value.uses())


NO_FACTS = ValueFacts()


@dataclass(frozen=True, slots=True)
class NamedModel:
    """The model, and the name of each value in it."""

    proto: onnx.ModelProto
    name: Naming


def build_structure(
    model: ir.Model, nodes: GraphNodes, types: Types, facts: ValueFacts = NO_FACTS
) -> NamedModel:
    """Return the structure of a model, whose graphs have these nodes, with declarations of values only where
    onnx cannot infer them.

    With several graphs, values get new names, since two graphs may use the same ones.
    """
    name = _numbered() if len(nodes) > 1 else _name
    imports = model.graph.opset_imports
    builder = _Builder(nodes, types, name, element_types.versions(imports), facts)
    versions = {**imports, _UNKNOWN: 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    version = max(model.ir_version, constants.CONSTANT_INPUTS_BELOW)  # constants are not inputs
    proto = onnx.ModelProto(ir_version=version, opset_import=opsets, graph=builder.graph(model.graph))
    return NamedModel(proto, name)


def _name(value: ir.Value) -> str:
    return value.name or ""


def _numbered() -> Naming:
    names: dict[ir.Value, str] = {}
    return lambda value: names.setdefault(value, f"v{len(names)}") if value.name else ""


def _is_small(dims: Sequence[int]) -> bool:
    return prod(dims) <= SMALL


class _Builder:
    def __init__(
        self, nodes: GraphNodes, types: Types, name: Naming, version: Callable[[str], int], facts: ValueFacts
    ) -> None:
        self._nodes, self._types, self._name, self._facts = nodes, types, name, facts
        self._schema = functools.cache(lambda domain, op: schema.of_onnx(domain, op, version(domain)))

    def graph(self, graph: ir.Graph) -> onnx.GraphProto:
        proto = onnx.GraphProto(name="g")
        proto.input.extend(self._declared(value) for value in graph.inputs if not value.is_initializer())
        proto.output.extend(onnx.ValueInfoProto(name=self._name(value)) for value in graph.outputs)
        for value in graph.initializers.values():
            if self._facts.is_read(value):
                self._store(proto, value, value.const_value)
        for node in self._nodes[graph]:
            self._node(proto, node)
        return proto

    def _declared(self, value: ir.Value) -> onnx.ValueInfoProto:
        """Return the declaration of a value; a shape without a type is dropped."""
        kind, shape = self._types.get(value), self._facts.shape(value)
        info = onnx.ValueInfoProto(name=self._name(value))
        if isinstance(kind, ir.TensorType):
            info.type.tensor_type.elem_type = kind.dtype
            if shape is not None:
                ir.serde.serialize_shape_into(info.type, shape)
        elif kind is not None:
            info.type.CopyFrom(ir.serde.serialize_type(kind))
        return info

    def _store(self, proto: onnx.GraphProto, value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
        if tensor is None:
            return
        name, raw = self._name(value), tensor.raw if isinstance(tensor, ir.serde.TensorProtoTensor) else None
        dims = tensor.shape.numpy() if raw is None else raw.dims
        if not _is_small(dims) or not constants.is_number(tensor.dtype):
            proto.value_info.append(helper.make_tensor_value_info(name, int(tensor.dtype), dims))
        elif raw is None:
            proto.initializer.append(onnx.numpy_helper.from_array(constants.read_whole(tensor), name))
        else:
            proto.initializer.add().CopyFrom(raw)  # five times as fast as converting its values
            proto.initializer[-1].MergeFrom(onnx.TensorProto(name=name))

    def _node(self, proto: onnx.GraphProto, node: ir.Node) -> None:
        if node in self._facts.settled:
            for value in (value for value in node.outputs if value.name and self._facts.is_read(value)):
                if value in self._facts.contents:
                    self._store(proto, value, ir.Tensor(self._facts.contents[value]))
                else:
                    proto.value_info.append(self._declared(value))
            return
        tensor = constants.constant(node)
        if tensor is not None:
            self._store(proto, node.outputs[0], tensor)
            return
        name = self._name
        is_wrong = is_wrongly_inferred(node)
        is_known = not is_wrong and self._schema(node.domain, node.op_type) is not None
        is_open = not any(self._is_static(value) for value in node.outputs)
        alike = equivalent_nodes(node, name, self._types) if is_open and not is_known else []
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
        beyond = self._facts.beyond
        named = (value for value in node.outputs if value.name and not (is_known and value not in beyond))
        proto.value_info.extend(map(self._declared, named))

    def _is_static(self, value: ir.Value) -> bool:
        shape = self._facts.shape(value)
        return shape is not None and shape.is_static()

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


COUNTING = having(Trait.COUNTS)
"""Operators with an output size that depends on data, which may be 0."""

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
    of_open_size: set[ir.Value | None] = set()
    if names is _Names.ALL:
        dataflow.follow(model.graph, nodes, of_open_size, lambda node: node.op_type in COUNTING)
    for value, kind in _inferred(structure, nodes):
        if not value.is_graph_output():
            _declare(value, kind, types, _Names.GIVEN if value in of_open_size else names)


def _inferred(structure: NamedModel, nodes: GraphNodes) -> Iterator[tuple[ir.Value, onnx.TypeProto.Tensor]]:
    """Yield the node outputs, each with the type that onnx infers for it."""
    graph = worker.infer(structure.proto, is_strict=True)
    graphs = () if graph is None else proto_traversal.graphs(graph)
    for inner, inferred in zip(nodes.values(), graphs, strict=False):
        infos = {info.name: info.type for info in inferred.value_info}
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
        structure = build_structure(
            model, nodes, types, ValueFacts(lambda value: shapes.get(value, value.shape))
        )
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


def _forget_made_up(value: ir.Value) -> None:
    """Remove names that an earlier inference generated: ours generates the same ones for other dimensions."""
    dims = None if value.is_graph_output() else _dims(value.shape)
    if dims is not None:
        dimensions = [None if str(dim).startswith(worker.MADE_UP) else dim for dim in dims]
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
    is_made_up = dim.dim_param.startswith(worker.MADE_UP)
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
