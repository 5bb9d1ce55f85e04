"""The shapes of values, as onnx infers them: runtimes need them to fuse, and estimates of cost to count."""

from __future__ import annotations

from enum import Enum

import onnx
import onnx_ir as ir

from amp_rewrite.model import traversal
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import element_types, worker, worker_process
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.open_sizes import Dims, OpenDimensions
from amp_rewrite.preparing import counted_sizes, structure_proto

MOST_NODES = 50_000
"""The number of nodes up to which shapes are inferred: the inference takes about a sixth of a rewrite, more
than all other steps that prepare a model.
"""


def infer(model: ir.Model, types: Types) -> None:
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
    structure = structure_proto.of(model, nodes, types)
    is_shown = any(dim is None for output in model.graph.outputs for dim in _dims(output.shape) or (None,))
    names = _Names.NONE if _has_slice_10(model, nodes) else _Names.GIVEN if is_shown else _Names.ALL
    counted = counted_sizes.values(model.graph, nodes) if names is _Names.ALL else set[ir.Value]()
    found = worker.call(worker_process.infer_values, structure.proto.SerializeToString()) or []
    for held, inferred in zip(nodes.values(), found, strict=False):
        infos = {info.name: info.type for info in onnx.GraphProto.FromString(inferred).value_info}
        for value in (value for node in held for value in node.outputs):
            kind = infos.get(structure.name(value))
            if kind is not None and not value.is_graph_output():
                _declare(value, kind.tensor_type, types, _Names.GIVEN if value in counted else names)


def sized(model: ir.Model, types: Types, dims: Dims) -> dict[ir.Value, ir.Shape]:
    """The shapes of values where open dimensions of the inputs have these sizes; empty without any.

    Raises OptionError when `dims` names what is not open, or gives one axis two sizes.
    """
    opened = OpenDimensions(model.graph, dims)
    if not dims:
        return {}
    made = {value: opened.given_shape(value) for value in model.graph.inputs}
    nodes = traversal.nodes(model.graph)
    for value in (value for held in nodes.values() for node in held for value in node.outputs):
        made[value] = opened.given_shape(value)
    if sum(map(len, nodes.values())) <= MOST_NODES:
        _infer_sized(structure_proto.of(model, nodes, types), nodes, made)
    return {value: shape for value, shape in made.items() if shape is not None}


def _infer_sized(
    structure: structure_proto.Structure,
    nodes: GraphNodes,
    made: dict[ir.Value, ir.Shape | None],
) -> None:
    """Adds to the sizes in `made` those that onnx infers from them."""
    infos = {info.name: info for info in (*structure.proto.graph.input, *structure.proto.graph.value_info)}
    for value, shape in made.items():
        info = infos.get(structure.name(value))
        if info is not None and shape is not None and info.type.HasField("tensor_type"):
            ir.serde.serialize_shape_into(info.type, shape)
    found = worker.call(worker_process.infer_values, structure.proto.SerializeToString()) or []
    for held, inferred in zip(nodes.values(), found, strict=False):
        kinds = {info.name: info.type.tensor_type for info in onnx.GraphProto.FromString(inferred).value_info}
        for value in (value for node in held for value in node.outputs):
            kind = kinds.get(structure.name(value))
            if kind is not None and kind.HasField("shape"):
                dims = tuple(_dimension(dim, _Names.ALL) for dim in kind.shape.dim)
                known = _dims(made[value])
                made[value] = ir.Shape(dims if known is None else _merged(known, dims))


_Dims = tuple[int | str | None, ...]


class _Names(Enum):
    """Which names of inferred sizes a value gets: sizes of one name are the same, as a runtime believes."""

    NONE = "none"
    GIVEN = "given by the model"
    ALL = "made up by onnx as well"


def _has_slice_10(model: ir.Model, nodes: GraphNodes) -> bool:
    """Whether what onnx infers has names that are wrong: a part has the name of the whole at opset 10."""
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
