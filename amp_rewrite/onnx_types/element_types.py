"""Inference of the type of every value, from operator schemas and declarations of the model."""

from __future__ import annotations

import functools
import graphlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.errors import ModelError
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.operators import catalogue, declared_types
from amp_rewrite.operators.record import Holds

Type = ir.TypeProtocol
Types = dict[ir.Value, Type]
"""The type of each value; a value that is not in it has an unknown type."""


def infer(model: ir.Model) -> Types:
    """Infer the types of values in the main graph and the graphs nested in it, as far as possible.

    Schemas take precedence over types that the model declares.
    """
    declared: dict[str, Type] = {}
    while True:
        inference = _Inference(model, declared)
        inference.graph(model.graph)
        assumed = inference.assumed()
        if not assumed:
            return inference.types
        declared |= assumed


def versions(imports: Mapping[str, int]) -> Callable[[str], int]:
    """Return a function from domains to their opset version: 1 if the model does not import it."""
    return lambda domain: imports.get(domain, imports.get("ai.onnx", 1) if domain == "" else 1)


def default_opset(imports: Mapping[str, int]) -> int:
    """Return the opset version of the default domain as in runtimes: the newest if it is not imported."""
    return imports.get("", imports.get("ai.onnx", 1 << 30))


@functools.cache
def tensor(dtype: ir.DataType) -> ir.TensorType:
    """Return the type of a dense tensor of an element type."""
    return ir.TensorType(dtype)


def with_element(kind: ir.TypeProtocol, dtype: ir.DataType) -> ir.TypeProtocol:
    """Return a copy of a type with another element type; the original may be shared."""
    if type(kind) is ir.TensorType:
        return tensor(dtype)
    if isinstance(kind, ir.SequenceType):
        return ir.SequenceType(with_element(kind.elem_type, dtype))
    if isinstance(kind, ir.OptionalType):
        return ir.OptionalType(with_element(kind.elem_type, dtype))
    return tensor(dtype)


@functools.cache
def element_type_name(dtype: ir.DataType) -> str:
    """Return an element type as in messages and new names: `float32`, `int64`."""
    return _LONG.get(dtype) or dtype.name.lower()


_LONG = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}


@functools.cache
def parse(text: str) -> Type | None:
    """Return the type with this text in a schema, as `seq(tensor(float))`; None for maps and variables."""
    outer, _, inner = text.rstrip(")").partition("(")
    if outer == "tensor":
        dtype = ir.DataType.__members__.get(inner.upper())
        return tensor(dtype) if dtype is not None else None
    wrap = {"seq": ir.SequenceType, "optional": ir.OptionalType}.get(outer)
    element = parse(text[len(outer) + 1 : -1]) if wrap else None
    return wrap(element) if wrap and element is not None else None


def declared_in(model: ir.Model) -> dict[str, str]:
    """Return the types that a model records of its custom operators (operators.declared_types)."""
    return declared_types.recorded(model.metadata_props, schema.is_known)


TypeOf = Callable[[ir.Value], Type | None]

DECLARED = schema.TypeVar("T")
"""The type variable of all float ports of a custom operator whose types are declared."""


class Layouts:
    """The port groups of a model's nodes, by the schemas of their operators or declared types."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = frozenset(model.functions)
        self._version = versions(dict(model.graph.opset_imports))
        self._declared = declared_types.by_operator(declared_in(model))

    def of(self, node: ir.Node, type_of: TypeOf) -> schema.Layout | None:
        """Return the groups of a node; None if its operator is unknown, or a function of the model."""
        if self._functions and node.op_identifier() in self._functions:
            return None
        if self._declared and (layout := self.declared(node, type_of)):
            return layout
        domain, inputs, outputs = node.domain, len(node.inputs), len(node.outputs)
        return schema.layout(domain, node.op_type, self._version(domain), inputs, outputs)

    def declared(self, node: ir.Node, type_of: TypeOf) -> schema.Layout | None:
        """Return the groups of a node by declared types; None without a declaration.

        Float ports, and those of unknown type, form one group, which is float32 if it has no inputs: these
        tell a kernel its type. All others have groups of their own.
        """
        declared = self._declared.get((node.domain, node.op_type))
        if declared is None:
            return None
        floats, alone = list[int](), list[schema.Group]()
        for port, value in (*enumerate(node.inputs), *((~i, value) for i, value in enumerate(node.outputs))):
            kind = None if value is None else type_of(value)
            if port in declared.ports:
                text = schema_text(declared.ports[port])
                alone.append(_group(schema.TypeVar(text, port), [port], [text]))
            elif kind is None or (isinstance(kind, ir.TensorType) and kind.dtype in _ROUNDABLE):
                floats.append(port)
            else:
                alone.append(_group(schema.TypeVar("?", port), [port], []))
        is_told = any(port >= 0 and node.inputs[port] is not None for port in floats)
        types = declared.floats if is_told else (ir.DataType.FLOAT,)
        return (*alone, _group(DECLARED, floats, map(schema_text, types)))


def _group(var: schema.TypeVar, ports: Sequence[int], allowed: Iterable[str]) -> schema.Group:
    sides = tuple(i for i in ports if i >= 0), tuple(~i for i in ports if i < 0)
    return schema.Group(var, *sides, frozenset(allowed))


def schema_text(dtype: int) -> str:
    """Return the type of a tensor as in schemas: `tensor(float)`."""
    return f"tensor({ir.DataType(dtype).name.lower()})"


_FLOAT32 = schema_text(ir.DataType.FLOAT)
_ROUNDABLE = HALF_TYPES | {ir.DataType.FLOAT}


class _Inference:
    """Forward inference of node outputs from node inputs, in the order of nodes; bodies with their node."""

    def __init__(self, model: ir.Model, declared: Mapping[str, Type]) -> None:
        self.types: Types = {}
        self._layouts, self._assumed = Layouts(model), dict[ir.Value, Type]()
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

    def _set(self, value: ir.Value, inferred_type: Type | None) -> None:
        if inferred_type is not None:
            self.types[value] = inferred_type

    def _node(self, node: ir.Node) -> None:
        if control_flow.may_have_bodies(node):
            self._with_bodies(node)
        elif node.op_type == "Constant":
            dtype = schema.of_constant(node)
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
        layout = self._layouts.of(node, self._type_of)
        for group in layout or ():
            group_type = self._bound(node, group)
            if group.var is DECLARED:
                self._declared_group(node, group, group_type or tensor(ir.DataType.FLOAT))
                continue
            for i in group.outputs:
                self._set(outputs[i], group_type or self._declaration(outputs[i]))
            for i in group.inputs if group_type is not None else ():
                value = inputs[i]
                if value is not None and value not in types and _is_defined(value):
                    self._set(value, group_type)  # all ports of a group have the same type
        for value in outputs if layout is None else ():
            self._set(value, self._declaration(value))

    def _type_of(self, value: ir.Value) -> Type | None:
        return self.types.get(value) or self._declaration(value)

    def _declared_group(self, node: ir.Node, group: schema.Group, group_type: Type) -> None:
        """Set the types of outputs that the model declares; others are assumed if nothing else tells."""
        for output in (node.outputs[i] for i in group.outputs):
            has_type = self._declaration(output) is not None
            (self.types if has_type else self._assumed)[output] = group_type

    def assumed(self) -> dict[str, Type]:
        """Return the types, by name, of outputs of custom operators whose readers could be of these types."""
        return {
            value.name: kind
            for value, kind in self._assumed.items()
            if value.name and value not in self.types and self._may_be_float(value)
        }

    def _may_be_float(self, value: ir.Value) -> bool:
        uses = ((port, self._layouts.of(node, self._type_of) or ()) for node, port in value.uses())
        groups = (group for port, layout in uses for group in layout if port in group.inputs)
        return all(_FLOAT32 in group.allowed for group in groups)

    def _bound(self, node: ir.Node, group: schema.Group) -> Type | None:
        inputs, types = node.inputs, self.types
        for i in group.inputs:
            value = inputs[i]
            if value is not None and (bound_type := types.get(value)) is not None:
                return bound_type
        if len(group.allowed) == 1:
            return parse(next(iter(group.allowed)))
        return self._of_container(node) or self._of_attribute(node, group)

    def _of_attribute(self, node: ir.Node, group: schema.Group) -> Type | None:
        typed = schema.of(node)
        if typed is None or typed.var != group.var.name:
            return None
        dtype = schema.declared(node, typed)
        if dtype is None and typed.like is not None:
            dtype = self._of_input(node, typed.like)
        dtype = dtype or (None if typed.default is None else ir.DataType(typed.default))
        return tensor(dtype) if dtype else None

    def _of_input(self, node: ir.Node, position: int) -> ir.DataType | None:
        value = node.inputs[position] if len(node.inputs) > position else None
        value_type = self.types.get(value) if value is not None else None
        return value_type.dtype if value_type is not None else None

    def _of_container(self, node: ir.Node) -> Type | None:
        """Return the output type of an operator on sequences or optionals, from that of its first input."""
        holds = catalogue.find(node.domain, node.op_type).holds
        first = self.types.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
        if holds is Holds.EMPTY:
            dtype = node.attributes.get("dtype")
            return ir.SequenceType(tensor(ir.DataType(dtype.as_int()) if dtype else ir.DataType.FLOAT))
        if holds in (Holds.ELEMENT, Holds.CONTENT):
            return first.elem_type if isinstance(first, (ir.SequenceType, ir.OptionalType)) else first
        if holds is Holds.SEQUENCE:
            return ir.SequenceType(first) if isinstance(first, ir.TensorType) else None
        if holds is Holds.OPTIONAL and first is not None:
            return ir.OptionalType(first)
        declared = node.attributes.get("type") if holds is Holds.OPTIONAL else None
        return ir.OptionalType(declared.value.type) if declared is not None else None

    def _bindings(self, bindings: tuple[control_flow.Binding, ...], node: ir.Node) -> None:
        for binding in bindings:
            self._enter(binding, node)
        for body in control_flow.bodies(node):
            self.graph(body)
        for binding in bindings:
            self._leave(binding, node)

    def _enter(self, binding: control_flow.Binding, node: ir.Node) -> None:
        outer = next(_present(node.inputs, binding.inputs), None)
        outer_type = self.types.get(outer) if outer is not None else None
        if binding.mapped and isinstance(outer_type, ir.SequenceType):
            outer_type = outer_type.elem_type
        for body, i in binding.enters:
            self._set(body.inputs[i], outer_type or body.inputs[i].type)

    def _leave(self, binding: control_flow.Binding, node: ir.Node) -> None:
        inner = (self.types.get(body.outputs[i]) for body, i in binding.leaves)
        output_type = next((kind for kind in inner if kind is not None), None)
        if binding.mapped and output_type is not None:
            output_type = ir.SequenceType(output_type)
        for value in _present(node.outputs, binding.outputs):
            self._set(value, output_type or self._declaration(value))


def _is_defined(value: ir.Value) -> bool:
    """Return whether onnx-ir has a definition of a value; it has none for a sparse initializer."""
    return value.producer() is not None or value.graph is not None


def _present(values: Sequence[ir.Value | None], ports: tuple[int, ...]) -> Iterator[ir.Value]:
    for i in ports:
        value = values[i] if i < len(values) else None
        if value is not None:
            yield value


CONTAINERS = catalogue.names(lambda each: each.holds)
"""The operators that wrap values in sequences and optionals, or unwrap them."""


# Values and nodes with two float types where ONNX requires one: no runtime loads such a model.
#
# Converters leave them behind: a declaration of the former type, or a constant that was not converted with
# its consumer.

_FLOATS = HALF_TYPES | {ir.DataType.FLOAT, ir.DataType.DOUBLE}


def find(model: ir.Model) -> str:
    """Describe the first conflict of a half type with another float type; empty without one."""
    types = infer(model)
    return next(_of_declarations(types), "") or next(_of_nodes(model, types), "")


def _of_declarations(types: Types) -> Iterator[str]:
    for value, inferred in types.items():
        if conflict := _conflict((inferred, value.type)):
            yield f"'{value.name}' is {conflict[0]}, and declared {conflict[1]}"


def _of_nodes(model: ir.Model, types: Types) -> Iterator[str]:
    layouts = Layouts(model)
    for node in model.graph.all_nodes():
        for values in _alike(node, layouts.of(node, types.get)):
            kinds = (types.get(value, value.type) for value in values if value is not None)
            if conflict := _conflict(kinds):
                name = node.name or next((value.name for value in node.outputs if value.name), "")
                yield f"{node.op_type} '{name}' has {' and '.join(conflict)} where its schema has one type"


def _alike(node: ir.Node, layout: schema.Layout | None) -> Iterator[list[ir.Value | None]]:
    """Yield the values at ports of a node, and of its bodies, that must have the same type."""
    bindings = control_flow.bindings(node) if control_flow.may_have_bodies(node) else None
    for binding in bindings or ():
        if not binding.mapped:
            outer = [value for i in binding.inputs for value in node.inputs[i : i + 1]]
            inner = [body.inputs[i] for body, i in binding.enters]
            yield [*outer, *inner, *(body.outputs[i] for body, i in binding.leaves)]
    for group in layout or () if bindings is None else ():
        yield [node.inputs[i] for i in group.inputs]


def _conflict(kinds: Iterable[ir.TypeProtocol | None]) -> list[str]:
    """Return the names of the tensors' float types, if there are several and one is half; else none."""
    dtypes = dict.fromkeys(kind.dtype for kind in kinds if isinstance(kind, ir.TensorType))
    is_one = len(dtypes) < 2 or HALF_TYPES.isdisjoint(dtypes) or not _FLOATS.issuperset(dtypes)
    return [] if is_one else [element_type_name(dtype) for dtype in dtypes]


# The number of nodes of a model after inlining its functions, computed without inlining them.

MOST_NODES = 1_000_000
"""The limit of nodes after inlining: ten times the largest published models, some minutes of work and
gigabytes of memory. It is needed since the number is exponential in the depth of calls.
"""


def refuse_too_many(model: ir.Model, retained: Collection[ir.OperatorIdentifier] = ()) -> None:
    """Raise ModelError if inlining all functions except `retained` results in more than MOST_NODES nodes.

    A model that already has more nodes is accepted if inlining adds none, and so are recursive functions,
    which cannot be inlined at all.
    """
    count, sizes = _inlined(model, retained)
    if count <= max(MOST_NODES, sum(map(_size, (model.graph, *model.functions.values())))):
        return
    worst = max(model.functions, key=lambda key: sizes[key])
    raise ModelError(
        f"the model's functions come to {_as_text(count)} nodes when they are inlined, "
        f"{schema.written(*worst[:2])} alone to {_as_text(sizes[worst])}, and {MOST_NODES:,} are the limit",
        remedy="rewrite it with `Options.keep_functions`, which leaves functions as they are",
    )


def node_count(model: ir.Model, retained: Collection[ir.OperatorIdentifier] = ()) -> int:
    """Return the number of nodes after inlining all functions but `retained`; before it if recursive."""
    return _inlined(model, retained)[0]


def _inlined(
    model: ir.Model, retained: Collection[ir.OperatorIdentifier]
) -> tuple[int, Mapping[ir.OperatorIdentifier | None, int]]:
    """Return the number of nodes of a model after inlining, and of each function and, by None, of the graph.

    Functions that are retained or never called count as well, with the calls in them inlined.
    """
    inlined = model.functions.keys() - set(retained)
    holders = {None: model.graph, **model.functions}
    sizes = {key: _size(holder) for key, holder in holders.items()}
    calls = {
        key: Counter(callee for node in holder.all_nodes() if (callee := node.op_identifier()) in inlined)
        for key, holder in holders.items()
    }
    try:
        order = tuple(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError:
        return sum(sizes.values()), sizes
    for key in order:  # a call becomes the nodes of its function
        sizes[key] += sum(times * (sizes[callee] - 1) for callee, times in calls[key].items())
    callees = {callee for counts in calls.values() for callee in counts}
    return sum(size for key, size in sizes.items() if key not in callees), sizes


def _size(holder: ir.Graph | ir.Function) -> int:
    return sum(1 for _ in holder.all_nodes())


def _as_text(count: int) -> str:
    """Return the number as text; an enormous one as a power of two."""
    return f"{count:,}" if count < _ENORMOUS else f"2^{count.bit_length() - 1} or more"


_ENORMOUS = 10**15
