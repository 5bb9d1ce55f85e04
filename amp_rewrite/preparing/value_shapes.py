"""The shapes of values, as onnx infers them: runtimes need them to fuse, and estimates of cost to count."""

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

from amp_rewrite.flops.node_inference import LIKE_FIRST
from amp_rewrite.model import constants, traversal
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.open_sizes import Dims, OpenDimensions
from amp_rewrite.preparing import stored_values
from amp_rewrite.process import worker, worker_process

# Operators of ONNX whose outputs have the shapes of onnxruntime's own, which onnx cannot infer. They keep
# sizes that are open, and their names; `flops.node_inference` says the same of sizes that are all numbers.
# What follows an operator that is not here has no shape.

Naming = Callable[[ir.Value], str]
Nodes = Iterator[onnx.NodeProto]


def equivalent_nodes(node: ir.Node, name: Naming, types: Types) -> Nodes:
    """Nodes that make outputs of the same shapes and types, of which the model declares no shapes; none where
    that cannot be said.
    """
    rule = _EQUIVALENTS.get(node.op_type) if node.domain in ("", CONTRIB) else None
    ports = _PORTS.get(node.op_type, (0,))
    outputs = [node.outputs[port] for port in ports if port < len(node.outputs)]
    if rule is None or not outputs or any(value.shape is not None for value in outputs):
        return
    like = f"{name(outputs[0])}//like"
    made = list(rule(node, name, like))
    for value in outputs if made else ():
        kind = types.get(value)
        if value.name and isinstance(kind, ir.TensorType):
            made.append(helper.make_node("Cast", [like], [name(value)], to=int(kind.dtype)))
    yield from made


def _first(node: ir.Node, name: Naming, like: str) -> Nodes:
    first = _given(node, 0)
    if first is not None:
        yield helper.make_node("Identity", [name(first)], [like])


def _unpacked(node: ir.Node, name: Naming, like: str) -> Nodes:
    """With keys of their own, queries have the shape of the result."""
    if _given(node, 1) is not None:
        yield from _first(node, name, like)


def _embedding(node: ir.Node, name: Naming, like: str) -> Nodes:
    """Rows of the embedding of words, one for each identifier."""
    ids, words = _given(node, 0), _given(node, 2)
    if ids is not None and words is not None:
        yield helper.make_node("Gather", [name(words), name(ids)], [like])


def _product(node: ir.Node, name: Naming, like: str) -> Nodes:
    one, other = _given(node, 0), _given(node, 1)
    if one is None or other is None or any(schema.integer(node, f"transBatch{side}") for side in "AB"):
        return
    left = "ji" if schema.integer(node, "transA") else "ij"
    right = "kj" if schema.integer(node, "transB") else "jk"
    equation = f"...{left},...{right}->...ik"
    yield helper.make_node("Einsum", [name(one), name(other)], [like], equation=equation)


def _attention(node: ir.Node, name: Naming, like: str) -> Nodes:
    """The product with a part of the weights: those of queries, keys and values lie side by side."""
    read, weights = _given(node, 0), _given(node, 1)
    stored = weights.const_value if weights is not None else None
    if read is None or weights is None or stored is None or len(stored.shape) != 2:
        return
    sizes = node.attributes.get("qkv_hidden_sizes")
    is_given = sizes is not None and sizes.type == ir.AttributeType.INTS and sizes.value
    width = sizes.as_ints()[-1] if sizes is not None and is_given else stored.shape.numpy()[1] // 3
    bounds = [f"{like}{at}" for at in range(3)]
    for bound, number in zip(bounds, (0, width, 1), strict=True):  # from, to, along which axis
        tensor = numpy_helper.from_array(np.array([number], np.int64))
        yield helper.make_node("Constant", [], [bound], value=tensor)
    yield helper.make_node("Slice", [name(weights), *bounds], [f"{like}3"])
    yield helper.make_node("MatMul", [name(read), f"{like}3"], [like])


def _given(node: ir.Node, port: int) -> ir.Value | None:
    return node.inputs[port] if port < len(node.inputs) else None


_SUMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_PORTS: Mapping[str, tuple[int, ...]] = dict.fromkeys(_SUMS, (0, 3))
"""The outputs of that shape, where it is not the first alone."""

_EQUIVALENTS: Mapping[str, Callable[[ir.Node, Naming, str], Nodes]] = {
    **dict.fromkeys((*LIKE_FIRST, *_SUMS), _first),
    "Attention": _attention,
    "EmbedLayerNormalization": _embedding,
    "FusedMatMul": _product,
    "GroupQueryAttention": _unpacked,
}


# Nodes whose outputs onnx gives wrong shapes.


def is_wrongly_inferred(node: ir.Node) -> bool:
    """Return whether what onnx 1.23 infers for a node is wrong, or is not what runtimes compute."""
    rule = None if node.domain else _WRONG_RULES.get(node.op_type)
    return rule is not None and rule(node)


def _has_sides_of_its_own(node: ir.Node) -> bool:
    """onnx takes an STFT that does not say so for one with two sides, and an open batch for one of 0."""
    signal = node.inputs[0]
    dims = signal.shape if signal is not None else None
    return "onesided" not in node.attributes or not dims or not isinstance(dims[0], int)


def _drops_axis(node: ir.Node) -> bool:
    """onnx ignores `keepdims = 0` of a SplitToSequence that is told where to split, and onnxruntime does not
    where the parts have one size. PyTorch's exporter writes `unbind` so.
    """
    kept = node.attributes.get("keepdims")
    return len(node.inputs) > 1 and node.inputs[1] is not None and kept is not None and kept.value == 0


_WRONG_RULES: Mapping[str, Callable[[ir.Node], bool]] = {
    "STFT": _has_sides_of_its_own,
    "SplitToSequence": _drops_axis,
}


# A model without its weights, for onnx's shape inference: its structure, and what small tensors hold.

SMALL = 1 << 7
"""The number of elements up to which tensors keep them: shapes and axes are among these."""

_UNKNOWN = "amp_rewrite.unknown"
"""A domain that onnx does not know, for nodes of which it infers nothing."""

_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True, slots=True)
class Structure:
    """The model, and the name of each value in it."""

    proto: onnx.ModelProto
    name: Naming


def build_structure(model: ir.Model, nodes: GraphNodes, types: Types) -> Structure:
    """The structure of a model, whose graphs have these nodes; what it declares of values stands there only
    where onnx cannot infer it.

    Where there are several graphs, values get new names: those of two graphs may be the same.
    """
    name = _numbered() if len(nodes) > 1 else _name
    imports = model.graph.opset_imports
    builder = _Builder(nodes, types, name, element_types.versions(imports))
    versions = {**imports, _UNKNOWN: 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    version = max(model.ir_version, constants.CONSTANT_INPUTS_BELOW)  # from there on none is an input as well
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
        made = onnx.GraphProto(name="g")
        made.input.extend(self._declared(value) for value in graph.inputs if not value.is_initializer())
        made.output.extend(onnx.ValueInfoProto(name=self._name(value)) for value in graph.outputs)
        for value in graph.initializers.values():
            self._store(made, value, value.const_value)
        for node in self._nodes[graph]:
            self._node(made, node)
        return made

    def _declared(self, value: ir.Value) -> onnx.ValueInfoProto:
        """Return the declaration of a value; a shape without a type says nothing."""
        kind = self._types.get(value)
        info = onnx.ValueInfoProto(name=self._name(value))
        if isinstance(kind, ir.TensorType):
            info.type.tensor_type.elem_type = kind.dtype
            if value.shape is not None:
                ir.serde.serialize_shape_into(info.type, value.shape)
        elif kind is not None:
            info.type.CopyFrom(ir.serde.serialize_type(kind))
        return info

    def _store(self, made: onnx.GraphProto, value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
        if tensor is None:
            return
        name, raw = self._name(value), tensor.raw if isinstance(tensor, ir.serde.TensorProtoTensor) else None
        dims = tensor.shape.numpy() if raw is None else raw.dims
        if not _is_small(dims) or not stored_values.is_number(tensor.dtype):
            made.value_info.append(helper.make_tensor_value_info(name, int(tensor.dtype), dims))
        elif raw is None:
            made.initializer.append(onnx.numpy_helper.from_array(constants.read_whole(tensor), name))
        else:
            made.initializer.add().CopyFrom(raw)  # five times as fast as by its numbers
            made.initializer[-1].MergeFrom(onnx.TensorProto(name=name))

    def _node(self, made: onnx.GraphProto, node: ir.Node) -> None:
        tensor = constants.constant(node)
        if tensor is not None:
            self._store(made, node.outputs[0], tensor)
            return
        name = self._name
        is_wrong = is_wrongly_inferred(node)
        is_known = not is_wrong and self._schema(node.domain, node.op_type) is not None
        alike = [] if is_known else list(equivalent_nodes(node, name, self._types))
        if alike:
            made.node.extend(alike)
            return
        written = made.node.add(
            op_type=node.op_type,
            domain=_UNKNOWN if is_wrong else node.domain,
            input=[name(value) if value is not None else "" for value in node.inputs],
            output=[name(value) for value in node.outputs],
        )
        has_bodies = control_flow.may_have_bodies(node)
        for attribute in node.attributes.values():
            if not attribute.is_ref() and (has_bodies or attribute.type not in _BODIES):
                self._attribute(written, attribute)
        if not is_known:
            made.value_info.extend(self._declared(value) for value in node.outputs if value.name)

    def _attribute(self, node: onnx.NodeProto, attribute: ir.Attr) -> None:
        kind = attribute.type
        if kind == ir.AttributeType.GRAPH:
            node.attribute.add(
                name=attribute.name, type=AttributeProto.GRAPH, g=self.graph(attribute.as_graph())
            )
        elif kind == ir.AttributeType.GRAPHS:
            bodies = map(self.graph, attribute.as_graphs())
            node.attribute.add(name=attribute.name, type=AttributeProto.GRAPHS, graphs=bodies)
        elif kind == ir.AttributeType.INT:  # faster than onnx-ir, and most attributes are numbers
            node.attribute.add(name=attribute.name, type=AttributeProto.INT, i=attribute.value)
        elif kind == ir.AttributeType.INTS:
            node.attribute.add(name=attribute.name, type=AttributeProto.INTS, ints=attribute.value)
        else:
            node.attribute.append(ir.serde.serialize_attribute(attribute))


# Values with as many elements as something occurs in other values: that may be none at all.

COUNTING = frozenset("Compress NonMaxSuppression NonZero Unique".split())
"""Operators whose outputs are as long as what they find."""


def values_of_counted_size(graph: ir.Graph, nodes: GraphNodes) -> set[ir.Value]:
    """Return the outputs of these operators, and what follows from them, in a graph and its bodies."""
    found: set[ir.Value] = set()
    if any(node.op_type in COUNTING for held in nodes.values() for node in held):
        _follow(graph, nodes, found)
    return found


def _follow(graph: ir.Graph, nodes: GraphNodes, found: set[ir.Value]) -> None:
    for node in nodes[graph]:
        is_reached = node.op_type in COUNTING or not found.isdisjoint(node.inputs)
        for body in control_flow.bodies(node):
            if is_reached:
                found.update(body.inputs)
            _follow(body, nodes, found)
            is_reached = is_reached or not found.isdisjoint(body.outputs)
        if is_reached:
            found.update(node.outputs)


MOST_NODES = 50_000
"""The number of nodes up to which shapes are inferred: the inference takes about a sixth of a rewrite, more
than all other steps that prepare a model.
"""


def infer_shapes(model: ir.Model, types: Types) -> None:
    """Gives the values that nodes make the shapes that onnx infers, and their types.

    What the model declares stays where it is as exact, or says more; where it contradicts what is inferred it
    is wrong, and replaced. Outputs of graphs stay as they are declared. Where onnx fails, and above
    MOST_NODES, nothing changes. Sizes that may be 0 get no made-up names: onnxruntime reshapes to [0, -1]
    where it knows that a size stays the same (ReshapeFusion), and that fails for values without elements.
    """
    nodes = traversal.nodes(model.graph) if len(model.graph) <= MOST_NODES else {}
    if not nodes or sum(map(len, nodes.values())) > MOST_NODES:
        return
    for value in (value for held in nodes.values() for node in held for value in node.outputs):
        _forget_made_up(value)
    structure = build_structure(model, nodes, types)
    is_shown = any(dim is None for output in model.graph.outputs for dim in _dims(output.shape) or (None,))
    names = _Names.NONE if _has_slice_10(model, nodes) else _Names.GIVEN if is_shown else _Names.ALL
    counted = values_of_counted_size(model.graph, nodes) if names is _Names.ALL else set[ir.Value]()
    for value, kind in _inferred(structure, nodes):
        if not value.is_graph_output():
            _declare(value, kind, types, _Names.GIVEN if value in counted else names)


def _inferred(structure: Structure, nodes: GraphNodes) -> Iterator[tuple[ir.Value, onnx.TypeProto.Tensor]]:
    """Yield the values that nodes make, each with the type that onnx infers for it."""
    graphs = worker.call(worker_process.infer_values, structure.proto.SerializeToString()) or []
    for inner, inferred in zip(nodes.values(), graphs, strict=False):
        infos = {info.name: info.type for info in onnx.GraphProto.FromString(inferred).value_info}
        for value in (value for node in inner for value in node.outputs):
            kind = infos.get(structure.name(value))
            if kind is not None:
                yield value, kind.tensor_type


def sized(model: ir.Model, types: Types, dims: Dims) -> dict[ir.Value, ir.Shape]:
    """The shapes of values where open dimensions of the inputs have these sizes; empty without any.

    Raises OptionError when `dims` names what is not open, or gives one axis two sizes.
    """
    opened = OpenDimensions(model.graph, dims)
    if not dims:
        return {}
    nodes = traversal.nodes(model.graph)
    outputs = (value for inner in nodes.values() for node in inner for value in node.outputs)
    shapes = {value: opened.given_shape(value) for value in (*model.graph.inputs, *outputs)}
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
    """The names of inferred sizes that a value gets: sizes of one name are the same, as runtimes believe."""

    NONE = "none"
    GIVEN = "given by the model"
    ALL = "made up by onnx as well"


def _has_slice_10(model: ir.Model, nodes: GraphNodes) -> bool:
    """Return whether names that onnx infers are wrong: a part has the name of the whole at opset 10."""
    if element_types.default_opset(model.graph.opset_imports) != _WRONG_SLICE:
        return False
    return any(node.op_type == "Slice" for held in nodes.values() for node in held)


_WRONG_SLICE = 10
"""The version of Slice whose inference copies the names of the sizes that it cuts (onnx 1.23)."""

_MADE_UP = "unk__"


def _forget_made_up(value: ir.Value) -> None:
    """Takes from a shape the names that an earlier inference made up: ours makes up the same for others."""
    dims = None if value.is_graph_output() else _dims(value.shape)
    if dims is not None:
        kept = [None if isinstance(dim, str) and dim.startswith(_MADE_UP) else dim for dim in dims]
        value.shape = value.shape if kept == list(dims) else ir.Shape(kept)


def _declare(value: ir.Value, inferred: onnx.TypeProto.Tensor, types: Types, names: _Names) -> None:
    """Gives a value a shape, unless onnx takes it for another type than we do.

    By the names that onnx makes up a runtime knows that two sizes are the same. It also passes them on to
    outputs of the model that have no names of their own, where they would be new.
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
        return dim.dim_value or None  # what an inference of onnx takes of an open size, such as Attention's
    is_made_up = dim.dim_param.startswith(_MADE_UP)
    is_kept = names is _Names.ALL or (names is _Names.GIVEN and not is_made_up)
    return dim.dim_param or None if is_kept else None


def _dims(shape: ir.Shape | None) -> _Dims | None:
    if shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


def _merged(declared: _Dims, inferred: _Dims) -> _Dims:
    """The more exact of the two in each dimension; what was inferred, where they contradict each other."""
    pairs = list(zip(declared, inferred, strict=False))
    apart = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    if apart or len(declared) != len(inferred):
        return inferred
    return tuple(b if a is None or isinstance(b, int) else a for a, b in pairs)
