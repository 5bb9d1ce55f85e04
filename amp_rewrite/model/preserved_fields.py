"""Fields of a model that onnx-ir rejects or drops: removed before it reads the model, and restored later."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir
from onnx import helper

from amp_rewrite.model import proto_traversal
from amp_rewrite.onnx_types import control_flow, schema


@dataclass(frozen=True, slots=True)
class PreservedFields:
    """The fields removed from a model.

    `types` are the declared types, by value name, that contain a map or an invalid element type; `sparse`
    the attributes with sparse tensors, by placeholder; `sparse_initializers` those of each graph that has any
    (the index is in its metadata); `training` the training information. `declared` names the values that
    have a value_info.
    """

    types: dict[str, onnx.TypeProto] = field(default_factory=dict[str, onnx.TypeProto])
    sparse: dict[bytes, onnx.AttributeProto] = field(default_factory=dict[bytes, onnx.AttributeProto])
    sparse_initializers: list[onnx.GraphProto] = field(default_factory=list[onnx.GraphProto])
    training: list[onnx.TrainingInfoProto] = field(default_factory=list[onnx.TrainingInfoProto])
    declared: set[str] = field(default_factory=set[str])

    @property
    def sparse_names(self) -> frozenset[str]:
        """Return the names of the sparse initializers."""
        graphs = self.sparse_initializers
        return frozenset(tensor.values.name for graph in graphs for tensor in graph.sparse_initializer)


def take_out(proto: onnx.ModelProto, graphs: Collection[onnx.GraphProto]) -> PreservedFields:
    """Remove from a model, which has these graphs, the fields that onnx-ir would reject or drop.

    Contradictions are resolved as runtimes do: by the last import of a domain, the value of an attribute
    outside a function rather than its reference, and data inside a tensor rather than outside.
    """
    preserved = PreservedFields()
    _remove_duplicate_imports(proto)
    preserved.training.extend(proto.training_info)
    del proto.training_info[:]
    for graph in (*graphs, *proto_traversal.in_functions(proto)):
        _remove_duplicate_initializers(graph)
        _take_sparse_initializers(graph, preserved)
    for graph in graphs:
        preserved.types.update(_take_types(graph))
        preserved.declared.update(info.name for info in graph.value_info)
        for tensor in graph.initializer:
            _remove_duplicate_data(tensor)
        for attribute in proto_traversal.attributes(graph.node):
            attribute.ClearField("ref_attr_name")
            _clean_attribute(attribute, preserved)
    for attribute in (a for f in proto.functions for a in proto_traversal.attributes(f.node)):
        if attribute.type in _SPARSE:
            _take_sparse(attribute, preserved)
    return preserved


def _clean_attribute(attribute: onnx.AttributeProto, preserved: PreservedFields) -> None:
    if attribute.type in _SPARSE:
        _take_sparse(attribute, preserved)
    elif attribute.type == onnx.AttributeProto.TENSOR:
        _remove_duplicate_data(attribute.t)
        if attribute.t.data_location and _has_data(attribute.t):
            attribute.t.ClearField("data_location")


def _remove_duplicate_imports(proto: onnx.ModelProto) -> None:
    """Keep the last import of each domain; the default domain has two names."""
    last = {schema.canonical(opset.domain): opset for opset in proto.opset_import}
    if len(last) < len(proto.opset_import):
        imports = [onnx.OperatorSetIdProto.FromString(opset.SerializeToString()) for opset in last.values()]
        del proto.opset_import[:]
        proto.opset_import.extend(imports)


def _remove_duplicate_initializers(graph: onnx.GraphProto) -> None:
    """Keep one of several initializers of a name, which are identical (model.loading.refuse)."""
    sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    dense = {tensor.name: tensor for tensor in graph.initializer}
    if len(sparse) + len(dense) < len(graph.sparse_initializer) + len(graph.initializer):
        unique_initializers = onnx.GraphProto(initializer=dense.values(), sparse_initializer=sparse.values())
        graph.ClearField("initializer")
        graph.ClearField("sparse_initializer")
        graph.MergeFrom(unique_initializers)


def restore(preserved: PreservedFields, proto: onnx.ModelProto) -> None:
    """Restore the removed fields in a model, where they still apply."""
    proto.training_info.extend(preserved.training)
    if not (preserved.types or preserved.sparse or preserved.sparse_initializers):
        return
    graphs = tuple(proto_traversal.graphs(proto.graph))
    for graph in (*graphs, *proto_traversal.in_functions(proto)):
        _restore_sparse_initializers(preserved, graph)
    for graph in graphs:
        for info in proto_traversal.value_infos(graph):
            if info.name in preserved.types:
                info.type.CopyFrom(preserved.types[info.name])
        _restore_sparse(preserved, graph.node)
    for function in proto.functions:
        _restore_sparse(preserved, function.node)


_SPARSE = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)

_PLACEHOLDER = b"amp-rewrite: sparse tensor %d"


def _take_sparse(attribute: onnx.AttributeProto, preserved: PreservedFields) -> None:
    placeholder, whole = _PLACEHOLDER % len(preserved.sparse), onnx.AttributeProto()
    whole.CopyFrom(attribute)
    preserved.sparse[placeholder] = whole
    attribute.Clear()
    attribute.name, attribute.type, attribute.s = whole.name, onnx.AttributeProto.STRING, placeholder


def _restore_sparse(preserved: PreservedFields, nodes: Iterable[onnx.NodeProto]) -> None:
    for attribute in proto_traversal.attributes(nodes):
        if attribute.s in preserved.sparse:
            attribute.CopyFrom(preserved.sparse[attribute.s])


_KEY = "amp-rewrite: sparse initializers"


def _take_sparse_initializers(graph: onnx.GraphProto, preserved: PreservedFields) -> None:
    if graph.sparse_initializer:
        graph.metadata_props.add(key=_KEY, value=str(len(preserved.sparse_initializers)))
        preserved.sparse_initializers.append(onnx.GraphProto(sparse_initializer=graph.sparse_initializer))
        del graph.sparse_initializer[:]


def _restore_sparse_initializers(preserved: PreservedFields, graph: onnx.GraphProto) -> None:
    for entry in [entry for entry in graph.metadata_props if entry.key == _KEY]:
        graph.sparse_initializer.extend(preserved.sparse_initializers[int(entry.value)].sparse_initializer)
        graph.metadata_props.remove(entry)


def _take_types(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    for info in proto_traversal.value_infos(graph):
        if _is_unsupported(info.type):
            type_proto = onnx.TypeProto()
            type_proto.CopyFrom(info.type)
            info.ClearField("type")
            yield info.name, type_proto


def _is_unsupported(kind: onnx.TypeProto) -> bool:
    """Return whether a type contains a map, or an invalid element type."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        return getattr(kind, which).elem_type not in _ELEMENT_TYPES
    if which in ("sequence_type", "optional_type"):
        return _is_unsupported(getattr(kind, which).elem_type)
    return which is not None


_ELEMENT_TYPES = frozenset(map(int, ir.DataType))


def _remove_duplicate_data(tensor: onnx.TensorProto) -> None:
    """Keep one of several data fields: the raw one, or that of the tensor's type."""
    data_fields = [name for name in _DATA if len(getattr(tensor, name))]
    if len(data_fields) + tensor.HasField("raw_data") > 1:
        field = "raw_data" if tensor.HasField("raw_data") else _FIELDS.get(tensor.data_type, "int32_data")
        for name in data_fields:
            if name != field:
                tensor.ClearField(name)


def _has_data(tensor: onnx.TensorProto) -> bool:
    return tensor.HasField("raw_data") or any(len(getattr(tensor, name)) for name in _DATA)


_DATA = "float_data int32_data string_data int64_data double_data uint64_data".split()

_FIELDS = {kind: helper.tensor_dtype_to_field(kind) for kind in helper.get_all_tensor_dtypes()}
"""The field with the data of each element type."""


def restore_trailing_outputs(model: ir.Model, proto: onnx.ModelProto, graphs: Iterable[ir.Graph]) -> None:
    """Restore omitted outputs at the end of a node's list, which onnx-ir does not write.

    Their number matters: a Loop has as many as its body, and a Split as many parts. `graphs` are those of the
    model without its functions.
    """
    last = (value for graph in graphs for node in graph for value in node.outputs[-1:])
    if not model.functions and all(value.name for value in last):
        return
    _restore_outputs(model.graph, proto.graph.node)
    for function, function_proto in zip(model.functions.values(), proto.functions, strict=True):
        _restore_outputs(function, function_proto.node)


def _restore_outputs(nodes: Iterable[ir.Node], protos: Iterable[onnx.NodeProto]) -> None:
    for node, proto in zip(nodes, protos, strict=True):
        if node.outputs and not node.outputs[-1].name:
            proto.output.extend([""] * (len(node.outputs) - len(proto.output)))
        bodies = control_flow.bodies(node)
        for body, body_proto in zip(bodies, proto_traversal.bodies(proto) if bodies else (), strict=True):
            _restore_outputs(body, body_proto.node)
