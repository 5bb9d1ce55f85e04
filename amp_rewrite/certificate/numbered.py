"""A model as numbered values, with their producers, and with Casts between floats looked through.

The nodes are those of protobufs, with their attributes, Constants and bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    defs,
    helper,
    numpy_helper,
)

from amp_rewrite.certificate import tensors
from amp_rewrite.certificate.element_checks import Array
from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.certificate.value_kinds import (
    FLOAT,
    SEQUENCE,
    Kind,
    find_schema,
    find_signature,
    of_tensor,
    of_type,
    takes_floats,
)
from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.operators.declared_types import DeclaredTypes, OpTypes

MISSING = 0
"""The number of an omitted optional value."""


@dataclass(slots=True, eq=False)
class Bound:
    """An attribute with the scope that it was written in, in which its bodies look up outer values."""

    attribute: AttributeProto
    scope: Scope


@dataclass(slots=True, eq=False)
class Scope:
    """The names that are visible in a graph; `outer` encloses it.

    `versions` are the opsets by domain, and `bound` the attributes of the function's call, None outside.
    `repeated` is the node that computes the graph once per iteration, None where it is computed once,
    `declared` has the graph's declarations of its values, and `is_custom` a body of a custom operator.
    """

    names: dict[str, int]
    outer: Scope | None
    versions: Mapping[str, int]
    bound: Mapping[str, Bound] | None = None
    repeated: Node | None = None
    declared: Mapping[str, ValueInfoProto] = field(default_factory=dict[str, ValueInfoProto])
    is_custom: bool = False

    def find(self, name: str) -> int | None:
        """Return the number of a value by name; None if undefined. A function sees only its own values."""
        scope: Scope | None = self
        while scope is not None:
            number = scope.names.get(name)
            if number is not None:
                return number
            outer = scope.outer
            is_function = outer is not None and outer.bound is None and scope.bound is not None
            scope = None if is_function else outer
        return None

    @property
    def outermost(self) -> Scope:
        """The scope of the model's graph."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope


@dataclass(slots=True, eq=False)
class Body:
    """A subgraph of a node: the numbers of its inputs and of its outputs, and the `names` of both."""

    attribute: str
    inputs: list[int]
    outputs: list[int]
    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A node; `inputs` are numbers, looked through Casts that change nothing but precision. `first` is the
    number of its first output, and `count` the number of outputs.
    """

    proto: Any
    operator: tuple[str, str]
    version: int
    inputs: list[int]
    first: int
    count: int
    scope: Scope
    bodies: list[Body] | None

    @property
    def numbers(self) -> range:
        """The numbers of its outputs."""
        return range(self.first, self.first + self.count)

    @property
    def left_out(self) -> Sequence[int]:
        """The outputs that it omits, which may decide what it computes, as for a norm in training mode."""
        return () if self.count == 1 else [port for port, name in enumerate(self.proto.output) if not name]


@dataclass(slots=True, eq=False)
class Numbered:
    """A model, its values by number.

    `nodes` has those with outputs, producers first and the nodes of bodies behind theirs; `makers` the
    producer of each value, if any; `stored` the tensors of constants. `roots` has the operand of a Cast
    between floats, for others the value itself. `visible` has the values of the model's graph by name, and
    `initial` its initializers by name, including defaults of inputs. `results` has the value in a function
    for each output of a call, `scopes` all graphs and functions with their scopes. `passed` has the operand
    of a node of control flow for each input of its bodies that takes it, and `typed` the declarations of
    those of custom operators. `fixed` inputs always have their defaults. `op_types` are declared for custom
    operators, and `assumed` names outputs of them that count as floats; `told` has the values whose kind
    nothing else tells.
    """

    proto: ModelProto
    folder: Folder | None
    op_types: OpTypes = field(default_factory=dict[tuple[str, str], DeclaredTypes])
    assumed: frozenset[str] = frozenset()
    told: set[int] = field(default_factory=set[int])
    fixed: frozenset[str] = frozenset()
    nodes: list[Node] = field(default_factory=list[Node])
    makers: list[Node | None] = field(default_factory=lambda: [None])
    roots: list[int] = field(default_factory=lambda: [MISSING])
    kinds: list[Kind] = field(default_factory=lambda: [None])
    names: list[str] = field(default_factory=lambda: [""])
    stored: dict[int, Any] = field(default_factory=dict[int, Any])
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    outputs: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    visible: dict[str, int] = field(default_factory=dict[str, int])
    initial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    calls: int = 0
    results: dict[int, int] = field(default_factory=dict[int, int])
    passed: dict[int, int] = field(default_factory=dict[int, int])
    typed: dict[int, TypeProto] = field(default_factory=dict[int, TypeProto])
    scopes: list[tuple[Any, Scope]] = field(default_factory=list[tuple[Any, Scope]])

    def add(self, name: str, maker: Node | None = None, kind: Kind = None) -> int:
        """Add a value and return its number."""
        number = len(self.roots)
        self.roots.append(number)
        self.makers.append(maker)
        self.kinds.append(kind)
        self.names.append(name)
        return number

    def add_all(self, names: Sequence[str]) -> None:
        """Add values of unknown producer and kind."""
        first, count = len(self.roots), len(names)
        self.roots.extend(range(first, first + count))
        self.makers.extend([None] * count)
        self.kinds.extend([None] * count)
        self.names.extend(names)

    def array(self, number: int, most: float = inf) -> Array | None:
        """Return a stored tensor of numbers; None for any other value, and for one of more elements."""
        tensor = self.stored.get(number)
        if not isinstance(tensor, TensorProto) or tensor.data_type == TensorProto.STRING:
            return None
        return tensors.whole(tensor, self.folder) if prod(tensors.dims(tensor)) <= most else None

    def read(self, node: Node) -> list[int]:
        """Return the operands of a node, including results of the Casts that `inputs` looks through."""
        values = [self.computed(node.scope.find(name) or MISSING) for name in node.proto.input]
        return values[: len(node.inputs)]

    def computed(self, number: int) -> int:
        """Return the value in a function that a value is, if it is a result of a call; else the value."""
        while number in self.results:
            number = self.results[number]
        return number

    def unknown_outputs(self) -> frozenset[str]:
        """Return the outputs of custom operators with declared types that nothing else tells the kind of, and
        that no operator without floats at that input reads.
        """
        custom = [node for node in self.nodes if node.operator in self.op_types]
        unknown = {self.names[n] for node in custom for n in node.numbers if self.kinds[n] is None}
        for node in self.nodes if unknown else ():
            reads = enumerate(self.names[number] for number in node.inputs)
            unknown -= {name for port, name in reads if not takes_floats(*node.operator, node.version, port)}
        return frozenset(unknown)

    def leaving(self) -> set[int]:
        """Return the values that leave the model or a body, without the Casts that are looked through."""
        bodies = (body for node in self.nodes for body in node.bodies or ())
        numbers = [number for _, number in self.outputs]
        return {
            self.roots[each] for each in (*numbers, *(value for body in bodies for value in body.outputs))
        }

    def variable_ports(self, node: Node) -> Sequence[int]:
        """Return the inputs of a node for whose operator one type of several is declared."""
        custom, reads = self.op_types.get(node.operator), self.read(node)
        floats = [i for i, v in enumerate(reads) if v != MISSING and self.kinds[v] in (FLOAT, None)]
        return [] if custom is None else [i for i in floats if i not in custom.ports]

    def describe(self, number: int) -> str:
        """Return a description of a value."""
        node, name = self.makers[number], self.names[number]
        if number == MISSING:
            return "nothing"
        if node is None:
            return f"the stored value '{name}'" if number in self.stored else f"the input '{name}'"
        title = f" '{node.proto.name}'" if node.proto.name else ""
        return f"{node.operator[1]}{title}, which makes '{name}'"


# ---- attributes


_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def bound_attributes(proto: Any, scope: Scope) -> dict[str, Bound]:
    """Return the attributes of a node in a scope; ModelError for two of one name.

    A reference to an attribute that the call omits is absent. Outside functions there are no references.
    """
    attributes: dict[str, Bound] = {}
    for attribute in proto.attribute:
        if attribute.name in attributes:
            raise ModelError(f"has a node with two attributes '{attribute.name}'", remedy=EXPORT_AGAIN)
        if scope.bound is None or not attribute.ref_attr_name:
            attributes[attribute.name] = Bound(attribute, scope)
        elif attribute.ref_attr_name in scope.bound:
            attributes[attribute.name] = scope.bound[attribute.ref_attr_name]
    return attributes


def attributes_of(node: Node) -> dict[str, Bound]:
    """Return the attributes of a numbered node."""
    return bound_attributes(node.proto, node.scope)


def graphs_of(attribute: AttributeProto) -> Iterator[GraphProto]:
    """Yield the graphs of an attribute."""
    if attribute.type == AttributeProto.GRAPH:
        yield attribute.g
    elif attribute.type == AttributeProto.GRAPHS:
        yield from attribute.graphs
    elif not attribute.type and (attribute.HasField("g") or attribute.graphs):
        raise ModelError(f"has a body '{attribute.name}' without a type", remedy=EXPORT_AGAIN)


def without_graphs(attributes: Mapping[str, Bound]) -> dict[str, AttributeProto]:
    """Return the attributes that hold no graphs."""
    return {name: bound.attribute for name, bound in attributes.items() if not has_graphs(bound)}


def has_graphs(bound: Bound) -> bool:
    """Return whether an attribute holds one or several graphs."""
    return bound.attribute.type in _GRAPHS


def is_plain_cast(node: Node) -> bool:
    """Return whether all attributes of a Cast but its type have their default values."""
    if len(node.proto.attribute) == 1:
        return True
    schema = find_schema(*node.operator, node.version)
    defaults = {} if schema is None else schema.attributes
    attributes = {name: bound.attribute for name, bound in attributes_of(node).items() if name != "to"}
    return all(
        name in defaults and attribute_content(defaults[name].default_value) == attribute_content(each)
        for name, each in attributes.items()
    )


def attribute_content(attribute: AttributeProto) -> object:
    """Return the content of an attribute for comparison: floats by their bits; tensor data is not read."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return kind, attribute.i
    if kind == AttributeProto.INTS:
        return kind, tuple(attribute.ints)
    content = AttributeProto()
    content.CopyFrom(attribute)
    for each in ("name", "doc_string", "ref_attr_name"):
        content.ClearField(each)
    return kind, content.SerializeToString(deterministic=True)


# ---- Constants


CONSTANT = ("", "Constant")


def constant_value(proto: Any, scope: Scope) -> Any:
    """Return the tensor, dense or sparse, of a Constant; ModelError unless it has one attribute, of the type
    that its name implies: one runtime goes by the name, another by the type.
    """
    if len(proto.output) > 1 or len(proto.input):
        raise ModelError("has a Constant with inputs, or with several outputs", remedy=EXPORT_AGAIN)
    if scope.bound is None and len(proto.attribute) == 1:  # the common case, and a fast path
        (attribute,) = proto.attribute
        if attribute.name == "value" and attribute.type == AttributeProto.TENSOR:
            return attribute.t
    attributes = bound_attributes(proto, scope)
    if len(attributes) != 1:
        raise ModelError("has a Constant without a value, or with several", remedy=EXPORT_AGAIN)
    ((name, bound),) = attributes.items()
    schema = find_schema(*CONSTANT, defs.onnx_opset_version())
    stated: Any = None if schema is None else schema.attributes.get(name)
    if stated is None or stated.type.value != bound.attribute.type:
        raise ModelError(f"has a Constant with a value '{name}' of another type", remedy=EXPORT_AGAIN)
    value = helper.get_attribute_value(bound.attribute)
    return numpy_helper.from_array(np.array(value, _DTYPES[name])) if name in _DTYPES else value


_DTYPES: Mapping[str, Any] = {
    **dict.fromkeys(("value_float", "value_floats"), np.float32),
    **dict.fromkeys(("value_int", "value_ints"), np.int64),
    **dict.fromkeys(("value_string", "value_strings"), object),
}


# ---- bodies of control flow


WITH_BODIES = frozenset(("", operator) for operator in ("If", "Loop", "Scan", "SequenceMap"))
"""ONNX operators with bodies."""

_FIRST_SCAN_WITHOUT_BATCH = 9


def entering_bodies(node: Node, operands: Sequence[int]) -> Sequence[int]:
    """Return the operands of a node that its bodies take, whole or in parts."""
    if node.operator not in WITH_BODIES or node.operator == ("", "If"):
        return ()
    has_batch = node.operator == ("", "Scan") and node.version < _FIRST_SCAN_WITHOUT_BATCH
    return operands[has_batch:]


def kinds_entering_bodies(node: Node, kinds: Sequence[Kind]) -> Sequence[Kind]:
    """Return the kinds of a node's body inputs, from those of the operands that enter its bodies."""
    if node.operator == ("", "Loop"):
        return (int(TensorProto.INT64), int(TensorProto.BOOL), *kinds[2:])
    if node.operator == ("", "SequenceMap"):
        return [kind[1] if isinstance(kind, tuple) and kind[0] == SEQUENCE else kind for kind in kinds]
    return kinds


def leaving_bodies(node: Node) -> Iterator[Sequence[int]]:
    """Yield, for each body of a node of control flow, the values that its outputs are, or are made of."""
    if node.operator in WITH_BODIES:
        has_condition = node.operator == ("", "Loop")
        yield from (body.outputs[has_condition:] for body in node.bodies or ())


def kinds_leaving_bodies(node: Node, kinds: Sequence[Kind]) -> Sequence[Kind]:
    """Return the kinds of a node's outputs, from those of the values that leave its first body."""
    first = next(leaving_bodies(node), ())
    is_map = node.operator == ("", "SequenceMap")
    return [(SEQUENCE, kinds[value]) if is_map else kinds[value] for value in first]


def repeating_node(node: Node | None) -> Node | None:
    """Return the node, this or an outer one, that may compute the bodies of a node several times or never;
    None if there is none. An If computes its bodies at most once.
    """
    if node is None or node.operator != ("", "If"):
        return node
    return node.scope.repeated


# ---- kinds from the consumers of a value


def deduce_kinds(model: Numbered, operator: tuple[str, str], version: int, inputs: Sequence[int]) -> None:
    """Set the kind of an input from that of another which must have the same type."""
    kinds = [model.kinds[number] for number in inputs]
    if None not in [kind for number, kind in zip(inputs, kinds, strict=True) if number != MISSING]:
        return
    signature = find_signature(*operator, version)
    if signature is None or not signature.inputs:
        return
    last = len(signature.inputs) - 1
    kind_of: dict[str, Kind] = {}
    for port, kind in enumerate(kinds):
        text, homogeneous = signature.inputs[min(port, last)]
        if kind is not None and homogeneous and text in signature.types:
            kind_of[text] = kind
    for port, number in enumerate(inputs):
        text, homogeneous = signature.inputs[min(port, last)]
        if number != MISSING and model.kinds[number] is None and homogeneous and text in kind_of:
            model.kinds[number] = kind_of[text]


# ---- inputs and constants


_OVERRIDABLE = 4
"""The first IR version in which a caller may override an initializer that is an input."""


def fixed_inputs(model: ModelProto, result: ModelProto) -> frozenset[str]:
    """Return the inputs that always have their defaults: before IR version 4, and where they are none in the
    result.
    """
    inputs = {info.name for info in model.graph.input} & tensors.initial(model.graph).keys()
    settable = {info.name for info in result.graph.input} if model.ir_version >= _OVERRIDABLE else set[str]()
    return frozenset(inputs - settable)


def add_inputs(model: Numbered) -> None:
    """Number the inputs of a model, and collect its initializers."""
    graph = model.proto.graph
    model.initial = initializers = tensors.initial(graph)
    for info in graph.input:
        if info.name not in model.fixed:
            kind = of_type(info.type)
            if kind is None and info.name in initializers:
                kind = of_tensor(initializers[info.name])
            model.inputs[info.name] = model.visible[info.name] = model.add(info.name, None, kind)


def add_stored(model: Numbered, initializers: Mapping[str, Any], names: dict[str, int]) -> None:
    """Number the initializers of a graph, except the defaults of its inputs, which are in `names` already."""
    defaults = frozenset(names)
    for name, tensor in initializers.items():
        if name not in defaults:
            names[name] = model.add(name, None, of_tensor(tensor))
            model.stored[names[name]] = tensor
