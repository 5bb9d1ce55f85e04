"""Widening of all half values of a model to float32, in place, and removal of Casts that become no-ops."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.units import Use
from amp_rewrite.model import constants, graph_edits, traversal
from amp_rewrite.model.traversal import every_node, graphs
from amp_rewrite.numerics.half import BY_NAME, HALF_TYPES
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.preparing import preparing
from amp_rewrite.rewriting import annotations, editing
from amp_rewrite.rewriting.instrument import Instrument, instrument

SMALL = 1 << 20
"""Elements up to which a stored tensor is searched for numbers at half's limits, as masks and bounds are."""


@dataclass(frozen=True, slots=True)
class Edited:
    """The edits: the stored tensors that were widened, the Casts that were removed, those that inputs,
    outputs and custom operators got, and the names of small stored tensors with a value to which masks are
    clamped: the largest of their half type or half of it, of either sign.
    """

    widened: int
    casts_removed: int
    casts_added: int
    at_limit: tuple[str, ...]


Halves = Collection[ir.DataType]
"""The half types that are widened."""


def has_half(model: ir.Model, halves: Halves = HALF_TYPES) -> bool:
    """Return whether a model has values of these types: inputs, stored tensors, or outputs of nodes."""
    nodes_by_graph = traversal.nodes(model.graph)
    if any(value.dtype in halves for graph in nodes_by_graph for value in graph.initializers.values()):
        return True
    nodes = itertools.chain(*nodes_by_graph.values(), *model.functions.values())
    return any(value.dtype in halves for value in model.graph.inputs) or any(
        schema.of_constant(node) in halves
        if node.op_type == "Constant"
        else (typed := schema.of(node)) and schema.declared(node, typed) in halves
        for node in nodes
    )


def widen(model: ir.Model, halves: Halves = HALF_TYPES, *, kept_io: Container[str | None] | None) -> Edited:
    """Widen the values of a model that have these types; inputs and outputs that are in `kept_io`, all for
    None, keep them behind Casts.

    A node without a schema, such as a custom operator, and one that consumes or produces the bits of half
    values keep their half inputs and outputs, behind Casts.
    """
    widener = _Widener(model, halves, kept_io)
    stored = [(name, tensor) for name, tensor in _tensors(model) if tensor.dtype in halves]
    at_limit = tuple(name for name, tensor in stored if _is_at_limit(tensor))
    before = _casts(model)
    widener.run()
    inserted = _casts(model) - before
    annotations.forget_decisions(model)
    preparing.bypass_casts(every_node(model.graph), element_types.infer(model))
    _take_over_outputs(model)
    _declare(model, halves)
    return Edited(len(stored), before + inserted - _casts(model), inserted, at_limit)


def _declare(model: ir.Model, halves: Halves) -> None:
    """Correct values whose declared type is half and whose actual type is not, as other tools leave them."""
    for value, kind in element_types.infer(model).items():
        declared = value.type
        if declared is not None and declared.dtype in halves and kind.dtype not in halves:
            value.type = element_types.with_element(declared, kind.dtype)


def _casts(model: ir.Model) -> int:
    return sum(node.op_type == "Cast" for node in every_node(model.graph))


def _tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for graph in graphs(model.graph):
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
        for node in graph:
            if (tensor := constants.constant(node)) is not None:
                yield node.outputs[0].name or "", tensor


def _is_at_limit(tensor: ir.TensorProtocol) -> bool:
    if tensor.size > SMALL:
        return False
    half = next(half for half in BY_NAME.values() if half.dtype == tensor.dtype)
    magnitudes = np.abs(constants.numbers(tensor).astype(np.float64))
    return bool(np.isin(magnitudes, (half.largest, half.fill)).any())


class _Widener:
    def __init__(self, model: ir.Model, halves: Halves, kept_io: Container[str | None] | None) -> None:
        self._model, self._root, self._halves, self._kept_io = model, model.graph, halves, kept_io
        self._types: Types = element_types.infer(model)
        self._layouts = element_types.Layouts(model)
        self._lists_weights = model.ir_version < constants.CONSTANT_INPUTS_BELOW

    def run(self) -> None:
        halves = [value for value in self._types if value.name and self._is_half(value)]
        nodes = [*every_node(self._root)]
        opaque = dict.fromkeys(node for node in nodes if not self._is_known(node))
        staying = dict.fromkeys(
            value for value in halves if self._is_border(value) or value.producer() in opaque
        )
        for node in nodes:
            if node not in opaque:
                widen_attributes(node, self._halves)
                if node.op_type == "Cast" and not node.domain and self._is_half(node.outputs[0]):
                    node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
        changing = [value for value in halves if value not in staying]
        for value in changing:
            stored = value.const_value
            value.const_value = None if stored is None else widen_tensor(stored)
            value.type = element_types.with_element(self._types[value], ir.DataType.FLOAT)
        with instrument(self._model, self._types) as points:
            for node in opaque:
                self._feed(points, node, staying)
            for value in staying:
                self._use_widened(points, value)
            self._keep_outputs(points, changing)

    def _is_known(self, node: ir.Node) -> bool:
        """Return whether an operator has a schema that accepts its types with float32 in place of half."""
        if node.op_type == "BitCast":
            return not any(self._is_half(value) for value in (*node.inputs, *node.outputs))
        return self._layouts.of(node, self._types.get) is not None

    def _is_half(self, value: ir.Value | None) -> bool:
        kind = None if value is None else self._types.get(value)
        return kind is not None and kind.dtype in self._halves

    def _is_border(self, value: ir.Value) -> bool:
        """Return whether it is an input of the model that keeps its type."""
        is_weight = self._lists_weights and value.is_initializer()
        return self._keeps(value) and value in self._root.inputs and not is_weight

    def _keeps(self, value: ir.Value) -> bool:
        """Return whether the value keeps its type as an input or output of the model."""
        return self._kept_io is None or value.name in self._kept_io

    def _feed(self, points: Instrument, node: ir.Node, staying: Container[ir.Value]) -> None:
        """Cast the inputs of an opaque node back to half."""
        for port, value in enumerate(node.inputs):
            if value is not None and self._is_half(value) and value not in staying:
                half = points.cast(value, self._dtype(value), _CAST)
                points.read([Use(node, port)], value, half)

    def _use_widened(self, points: Instrument, value: ir.Value) -> None:
        """Cast a value that stays half to float32 for all consumers but opaque nodes."""
        exempt = self._root if self._keeps(value) else None
        uses = [
            use
            for use in points.uses(value)
            if (self._is_known(use.holder) if isinstance(use.holder, ir.Node) else use.holder is not exempt)
        ]
        if uses:
            points.read(uses, value, points.cast(value, ir.DataType.FLOAT, _CAST))

    def _keep_outputs(self, points: Instrument, halves: list[ir.Value]) -> None:
        for value in halves:
            uses = points.model_outputs(value)
            if uses and self._keeps(value):
                points.read(uses, value, points.cast(value, self._dtype(value), _CAST))

    def _dtype(self, value: ir.Value) -> ir.DataType:
        dtype = self._types[value].dtype
        assert dtype is not None, "a half value has an element type"
        return dtype


_CAST = "cast"


def _take_over_outputs(model: ir.Model) -> None:
    """Remove Casts from float32 to float32 that feed outputs; their inputs take over the output names."""
    types = element_types.infer(model)
    for graph in graphs(model.graph):
        replacements: dict[ir.Value, ir.Value] = {}
        idle: list[ir.Node] = []
        ports: dict[ir.Value, list[int]] = {}
        for port, value in enumerate(graph.outputs):
            ports.setdefault(value, []).append(port)
        for node in graph:
            value = node.inputs[0] if node.op_type == "Cast" and not node.domain else None
            if value is None or not _is_idle(value, node.outputs[0], types) or value.graph is not graph:
                continue
            output = node.outputs[0]
            value.name, output.name = output.name, value.name
            value.shape = output.shape if output.shape is not None else value.shape
            value.type = value.type or output.type
            for port in ports[output]:
                graph.outputs[port] = value
            replacements[output] = value
            idle.append(node)
        graph_edits.replace_uses(replacements)
        graph_edits.remove(idle)


def _is_idle(value: ir.Value, output: ir.Value, types: Types) -> bool:
    """Return whether an output equals its Cast's input, which has a producer and is no output itself."""
    float32 = ir.TensorType(ir.DataType.FLOAT)
    same = types.get(value) == float32 == types.get(output)
    return same and output.is_graph_output() and value.producer() is not None and not value.is_graph_output()


def widen_attributes(node: ir.Node, halves: Container[ir.DataType | None] = HALF_TYPES) -> None:
    """Widen tensors of these types in attributes to float32, and the types that attributes name."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            if attribute.as_tensor().dtype in halves:
                node.attributes[name] = ir.AttrTensor(name, widen_tensor(attribute.as_tensor()))
        elif attribute.type == ir.AttributeType.TYPE_PROTO and not attribute.is_ref():
            value_type = attribute.value.type
            if value_type.dtype in halves:
                wide = element_types.with_element(value_type, ir.DataType.FLOAT)
                type_and_shape = ir.TypeAndShape(wide, attribute.value.shape)
                node.attributes[name] = ir.Attr(name, ir.AttributeType.TYPE_PROTO, type_and_shape)
    typed = schema.of(node)
    if typed is None or not typed.settable or node.op_type in ("Cast", "ConstantOfShape"):
        return
    if schema.declared(node, typed) in halves:
        wide_type = int(ir.DataType.FLOAT)
        node.attributes[typed.attribute] = ir.AttrInt64(typed.attribute, wide_type)


def widen_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return the tensor in float32 where it is half; a large one is converted when it is written."""
    if tensor.dtype not in HALF_TYPES:
        return tensor
    if tensor.nbytes < editing.LAZY_FROM:
        return ir.Tensor(_to_float32(tensor.numpy()), name=tensor.name)
    return constants.ConvertedTensor(tensor, _to_float32, ir.DataType.FLOAT, tensor.name)


def _to_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    return array.astype(np.float32)
