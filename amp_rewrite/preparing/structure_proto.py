"""A model without its weights, for onnx's shape inference: its structure, and what small tensors hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import onnx
import onnx_ir as ir
from onnx import AttributeProto, helper

from amp_rewrite.model import constants
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.preparing import contrib_equivalents, stored_values, wrong_inferences
from amp_rewrite.preparing.contrib_equivalents import Naming

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


def of(model: ir.Model, nodes: GraphNodes, types: Types) -> Structure:
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
        """What is declared of a value; a shape without a type says nothing."""
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
            made.initializer.append(onnx.numpy_helper.from_array(stored_values.read(tensor), name))
        else:
            made.initializer.add().CopyFrom(raw)  # five times as fast as by its numbers
            made.initializer[-1].MergeFrom(onnx.TensorProto(name=name))

    def _node(self, made: onnx.GraphProto, node: ir.Node) -> None:
        tensor = constants.constant(node)
        if tensor is not None:
            self._store(made, node.outputs[0], tensor)
            return
        name = self._name
        is_wrong = wrong_inferences.is_wrong(node)
        is_known = not is_wrong and self._schema(node.domain, node.op_type) is not None
        alike = [] if is_known else list(contrib_equivalents.nodes_for(node, name, self._types))
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
        elif kind == ir.AttributeType.INT:
            node.attribute.add(name=attribute.name, type=AttributeProto.INT, i=attribute.value)
        elif kind == ir.AttributeType.INTS:
            node.attribute.add(name=attribute.name, type=AttributeProto.INTS, ints=attribute.value)
        else:
            node.attribute.append(ir.serde.serialize_attribute(attribute))
