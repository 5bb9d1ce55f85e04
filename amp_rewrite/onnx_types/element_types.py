"""Infers the type of every value, from the operators' schemas and from what the model declares."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.onnx_types import attribute_types, control_flow, schema

Type = ir.TypeProtocol
Types = dict[ir.Value, Type]
"""The type of each value; a value that is not in it has an unknown type."""

_NAMES = {
    "float": ir.DataType.FLOAT,
    "double": ir.DataType.DOUBLE,
    **{d.name.lower(): d for d in ir.DataType if d not in (ir.DataType.FLOAT, ir.DataType.DOUBLE)},
}


def infer(model: ir.Model, declared: Mapping[str, Type] | None = None) -> Types:
    """The types of the values of the main graph and the graphs nested in it, as far as they can be inferred.

    Schemas take precedence over types that the model declares, and those over `declared`: types by value
    name from another source, such as shape inference.
    """
    inference = _Inference(model, declared or {})
    inference.graph(model.graph)
    return inference.types


def complete(model: ir.Model, types: Types) -> bool:
    """Whether every node output of the main graph has a type."""
    return all(value in types for node in model.graph for value in node.outputs if value.name)


def versions(imports: Mapping[str, int]) -> Callable[[str], int]:
    """A function that returns the opset version of a domain: 1 if the model does not import it."""
    return lambda domain: imports.get(domain, imports.get("ai.onnx", 1) if domain == "" else 1)


def default_opset(imports: Mapping[str, int]) -> int:
    """The opset version of the default domain, as runtimes read it: the newest if it is not imported."""
    return imports.get("", imports.get("ai.onnx", 1 << 30))


@functools.cache
def tensor(dtype: ir.DataType) -> ir.TensorType:
    """The type of a dense tensor of an element type."""
    return ir.TensorType(dtype)


@functools.cache
def element_type_name(dtype: ir.DataType) -> str:
    """An element type as in messages and new names: `float32`, `int64`."""
    return _LONG.get(dtype) or dtype.name.lower()


_LONG = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}


@functools.cache
def parse(text: str) -> Type | None:
    """The type with this text in a schema, such as `seq(tensor(float))`; None for maps and variables."""
    outer, _, inner = text.rstrip(")").partition("(")
    if outer == "tensor":
        dtype = _NAMES.get(inner)
        return tensor(dtype) if dtype is not None else None
    wrap = {"seq": ir.SequenceType, "optional": ir.OptionalType}.get(outer)
    element = parse(text[len(outer) + 1 : -1]) if wrap else None
    return wrap(element) if wrap and element is not None else None


class _Inference:
    """Infers node outputs from node inputs, in the order of nodes; bodies with their node."""

    def __init__(self, model: ir.Model, declared: Mapping[str, Type]) -> None:
        self.types: Types = {}
        self._functions = frozenset(model.functions)
        self._version = versions(dict(model.graph.opset_imports))
        self._declared = declared

    def graph(self, graph: ir.Graph) -> None:
        for value in (*graph.initializers.values(), *graph.inputs):
            self._stored_or_declared(value)
        for node in graph:
            self._node(node)

    def _stored_or_declared(self, value: ir.Value) -> None:
        if value.const_value is not None:
            self.types[value] = tensor(value.const_value.dtype)
        elif value not in self.types:
            self._set(value, self._declaration(value))

    def _declaration(self, value: ir.Value) -> Type | None:
        return value.type or self._declared.get(value.name or "")

    def _set(self, value: ir.Value, found: Type | None) -> None:
        if found is not None:
            self.types[value] = found

    def _node(self, node: ir.Node) -> None:
        if control_flow.may_have_bodies(node):
            self._with_bodies(node)
        elif node.op_type == "Constant":
            dtype = attribute_types.of_constant(node)
            self._set(node.outputs[0], tensor(dtype) if dtype else None)
        else:
            self._groups(node)

    def _with_bodies(self, node: ir.Node) -> None:
        bindings = control_flow.bindings(node)
        if bindings is not None:
            self._bindings(bindings, node)
            return
        self._groups(node)
        for body in control_flow.bodies(node):
            self.graph(body)

    def _groups(self, node: ir.Node) -> None:
        inputs, outputs, types = node.inputs, node.outputs, self.types
        version = self._version(node.domain)
        layout = schema.layout(node.domain, node.op_type, version, len(inputs), len(outputs))
        if self._functions and node.op_identifier() in self._functions:
            layout = None
        for group in layout or ():
            found = self._bound(node, group)
            for i in group.outputs:
                self._set(outputs[i], found or self._declaration(outputs[i]))
            for i in group.inputs if found is not None else ():
                value = inputs[i]
                if value is not None and value not in types and _is_defined(value):
                    self._set(value, found)  # all ports of a group have the same type
        for value in outputs if layout is None else ():
            self._set(value, self._declaration(value))

    def _bound(self, node: ir.Node, group: schema.Group) -> Type | None:
        inputs, types = node.inputs, self.types
        for i in group.inputs:
            value = inputs[i]
            if value is not None and (found := types.get(value)) is not None:
                return found
        if len(group.allowed) == 1:
            return parse(next(iter(group.allowed)))
        return self._of_container(node) or self._of_attribute(node, group)

    def _of_attribute(self, node: ir.Node, group: schema.Group) -> Type | None:
        typed = attribute_types.of(node)
        if typed is None or typed.var != group.var.name:
            return None
        dtype = attribute_types.declared(node, typed)
        if dtype is None and typed.like is not None:
            dtype = self._of_variable(node, typed.like)
        dtype = dtype or typed.default
        return tensor(dtype) if dtype else None

    def _of_variable(self, node: ir.Node, name: str) -> ir.DataType | None:
        position = {"T1": 0, "T2": 1}[name]
        value = node.inputs[position] if len(node.inputs) > position else None
        found = self.types.get(value) if value is not None else None
        return found.dtype if found is not None else None

    def _of_container(self, node: ir.Node) -> Type | None:
        """The output type of an operator on sequences or optionals, from that of its first input."""
        derive = _CONTAINER_OUTPUTS.get(node.op_type) if node.domain == "" else None
        first = self.types.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
        return derive(node, first) if derive else None

    def _bindings(self, bindings: tuple[control_flow.Binding, ...], node: ir.Node) -> None:
        for binding in bindings:
            self._enter(binding, node)
        for body in control_flow.bodies(node):
            self.graph(body)
        for binding in bindings:
            self._leave(binding, node)

    def _enter(self, binding: control_flow.Binding, node: ir.Node) -> None:
        outer = next(_present(node.inputs, binding.inputs), None)
        found = self.types.get(outer) if outer is not None else None
        if binding.mapped and isinstance(found, ir.SequenceType):
            found = found.elem_type
        for body, i in binding.enters:
            self._set(body.inputs[i], found or body.inputs[i].type)

    def _leave(self, binding: control_flow.Binding, node: ir.Node) -> None:
        inner = (self.types.get(body.outputs[i]) for body, i in binding.leaves)
        found = next((kind for kind in inner if kind is not None), None)
        if binding.mapped and found is not None:
            found = ir.SequenceType(found)
        for value in _present(node.outputs, binding.outputs):
            self._set(value, found or self._declaration(value))


def _is_defined(value: ir.Value) -> bool:
    """Whether onnx-ir knows a definition of a value; it knows none for a sparse initializer."""
    return value.producer() is not None or value.graph is not None


def _present(values: Sequence[ir.Value | None], ports: tuple[int, ...]) -> Iterator[ir.Value]:
    for i in ports:
        value = values[i] if i < len(values) else None
        if value is not None:
            yield value


def _element(_node: ir.Node, first: Type | None) -> Type | None:
    return first.elem_type if isinstance(first, (ir.SequenceType, ir.OptionalType)) else first


def _sequence(_node: ir.Node, first: Type | None) -> Type | None:
    return ir.SequenceType(first) if isinstance(first, ir.TensorType) else None


def _optional(node: ir.Node, first: Type | None) -> Type | None:
    if first is not None:
        return ir.OptionalType(first)
    declared = node.attributes.get("type")
    return ir.OptionalType(declared.value.type) if declared is not None else None


def _empty(node: ir.Node, _first: Type | None) -> Type | None:
    dtype = node.attributes.get("dtype")
    return ir.SequenceType(tensor(ir.DataType(dtype.as_int()) if dtype else ir.DataType.FLOAT))


_CONTAINER_OUTPUTS: dict[str, Callable[[ir.Node, Type | None], Type | None]] = {
    "SequenceAt": _element,
    "ConcatFromSequence": _element,
    "OptionalGetElement": _element,
    "SequenceConstruct": _sequence,
    "SplitToSequence": _sequence,
    "SequenceEmpty": _empty,
    "Optional": _optional,
}

CONTAINERS = frozenset((*_CONTAINER_OUTPUTS, "SequenceInsert"))
"""The operators that wrap values in sequences and optionals, or unwrap them."""
