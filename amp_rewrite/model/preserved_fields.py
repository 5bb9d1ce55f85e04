"""What onnx-ir would refuse or lose of a model: taken out on the way in, and put back on the way out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from amp_rewrite.model import proto_traversal


@dataclass(frozen=True, slots=True)
class PreservedFields:
    """What was taken out of a model.

    `types` are those of values, by name, that hold maps or what is no element type; `sparse` the attributes
    that hold sparse tensors, in whose places stand notes; `rest` has the sparse initializers and the training
    information; `bodies` are graphs of nothing but the sparse initializers of a body, which has a note of its
    number. `declared` names the values that had a value_info.
    """

    types: dict[str, onnx.TypeProto] = field(default_factory=dict[str, onnx.TypeProto])
    sparse: dict[bytes, onnx.AttributeProto] = field(default_factory=dict[bytes, onnx.AttributeProto])
    rest: onnx.ModelProto = field(default_factory=onnx.ModelProto)
    bodies: list[onnx.GraphProto] = field(default_factory=list[onnx.GraphProto])
    declared: set[str] = field(default_factory=set[str])

    @property
    def sparse_names(self) -> frozenset[str]:
        """The names of the sparse initializers."""
        graphs = (self.rest.graph, *self.bodies)
        return frozenset(tensor.values.name for graph in graphs for tensor in graph.sparse_initializer)


def take_out(proto: onnx.ModelProto, graphs: Collection[onnx.GraphProto]) -> PreservedFields:
    """Takes out of a model, which has these graphs, what onnx-ir would refuse or lose.

    Attributes are left as runtimes take them: by what they hold and not by what they refer to, since outside
    of a function there is nothing; and a tensor that is there does not lie elsewhere.
    """
    kept = PreservedFields()
    _import_once(proto)
    kept.rest.training_info.extend(proto.training_info)
    kept.rest.graph.sparse_initializer.extend(proto.graph.sparse_initializer)
    del proto.training_info[:]
    del proto.graph.sparse_initializer[:]
    for graph in (*graphs, *proto_traversal.in_functions(proto)):
        _take_sparse_initializers(graph, kept)
    for graph in graphs:
        kept.types.update(_take_types(graph))
        kept.declared.update(info.name for info in graph.value_info)
        for tensor in graph.initializer:
            _hold_once(tensor)
        for attribute in proto_traversal.attributes(graph.node):
            attribute.ClearField("ref_attr_name")
            _settle_attribute(attribute, kept)
    for attribute in (a for function in proto.functions for a in proto_traversal.attributes(function.node)):
        if attribute.type in _SPARSE:
            _take_sparse(attribute, kept)
    return kept


def _settle_attribute(attribute: onnx.AttributeProto, kept: PreservedFields) -> None:
    if attribute.type in _SPARSE:
        _take_sparse(attribute, kept)
    elif attribute.type == onnx.AttributeProto.TENSOR:
        _hold_once(attribute.t)
        if attribute.t.data_location and _is_there(attribute.t):
            attribute.t.ClearField("data_location")


def _import_once(proto: onnx.ModelProto) -> None:
    """Of several imports of a domain the last one counts, for runtimes; the default domain has two names."""
    last = {"" if opset.domain == "ai.onnx" else opset.domain: opset for opset in proto.opset_import}
    if len(last) < len(proto.opset_import):
        kept = [onnx.OperatorSetIdProto.FromString(opset.SerializeToString()) for opset in last.values()]
        del proto.opset_import[:]
        proto.opset_import.extend(kept)


def restore(kept: PreservedFields, proto: onnx.ModelProto) -> None:
    """Puts into a model again what was taken out of it, where it still belongs."""
    proto.training_info.extend(kept.rest.training_info)
    proto.graph.sparse_initializer.extend(kept.rest.graph.sparse_initializer)
    if not (kept.types or kept.sparse or kept.bodies):
        return
    for graph in proto_traversal.all_graphs(proto):
        _put_back_sparse_initializers(kept, graph)
    for graph in proto_traversal.graphs(proto.graph):
        for info in proto_traversal.value_infos(graph):
            if info.name in kept.types:
                info.type.CopyFrom(kept.types[info.name])
        _put_back_sparse(kept, graph.node)
    for function in proto.functions:
        _put_back_sparse(kept, function.node)


_SPARSE = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)

_NOTE = b"amp-rewrite: sparse tensor %d"


def _take_sparse(attribute: onnx.AttributeProto, kept: PreservedFields) -> None:
    note, whole = _NOTE % len(kept.sparse), onnx.AttributeProto()
    whole.CopyFrom(attribute)
    kept.sparse[note] = whole
    attribute.Clear()
    attribute.name, attribute.type, attribute.s = whole.name, onnx.AttributeProto.STRING, note


def _put_back_sparse(kept: PreservedFields, nodes: Iterable[onnx.NodeProto]) -> None:
    for attribute in proto_traversal.attributes(nodes):
        if attribute.s in kept.sparse:
            attribute.CopyFrom(kept.sparse[attribute.s])


_KEY = "amp-rewrite: sparse initializers"


def _take_sparse_initializers(graph: onnx.GraphProto, kept: PreservedFields) -> None:
    if graph.sparse_initializer:
        graph.metadata_props.add(key=_KEY, value=str(len(kept.bodies)))
        kept.bodies.append(onnx.GraphProto(sparse_initializer=graph.sparse_initializer))
        del graph.sparse_initializer[:]


def _put_back_sparse_initializers(kept: PreservedFields, graph: onnx.GraphProto) -> None:
    for note in [entry for entry in graph.metadata_props if entry.key == _KEY]:
        graph.sparse_initializer.extend(kept.bodies[int(note.value)].sparse_initializer)
        graph.metadata_props.remove(note)


def _take_types(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    for info in proto_traversal.value_infos(graph):
        if _is_odd(info.type):
            kept = onnx.TypeProto()
            kept.CopyFrom(info.type)
            info.ClearField("type")
            yield info.name, kept


def _is_odd(kind: onnx.TypeProto) -> bool:
    """Whether a type holds a map, or what is no element type."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        return getattr(kind, which).elem_type not in _ELEMENT_TYPES
    if which in ("sequence_type", "optional_type"):
        return _is_odd(getattr(kind, which).elem_type)
    return which is not None


_ELEMENT_TYPES = frozenset(map(int, ir.DataType))


def _hold_once(tensor: onnx.TensorProto) -> None:
    """Leaves one of several fields with data, as runtimes do: the raw one, or that of the tensor's type."""
    held = [name for name in _DATA if len(getattr(tensor, name))]
    if len(held) + tensor.HasField("raw_data") > 1:
        read = "raw_data" if tensor.HasField("raw_data") else _FIELDS.get(tensor.data_type, "int32_data")
        for name in held:
            if name != read:
                tensor.ClearField(name)


def _is_there(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor holds any data itself."""
    return tensor.HasField("raw_data") or any(len(getattr(tensor, name)) for name in _DATA)


_DATA = "float_data int32_data string_data int64_data double_data uint64_data".split()

_FIELDS: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float_data",
    onnx.TensorProto.INT64: "int64_data",
    onnx.TensorProto.DOUBLE: "double_data",
    onnx.TensorProto.UINT64: "uint64_data",
    onnx.TensorProto.UINT32: "uint64_data",
    onnx.TensorProto.STRING: "string_data",
    onnx.TensorProto.COMPLEX64: "float_data",
    onnx.TensorProto.COMPLEX128: "double_data",
}
"""Where the data of a type is; that of all others is in int32_data."""
