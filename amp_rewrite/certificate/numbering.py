"""Numbers the values of a model: every graph, and every call of a function, in the order of its nodes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, defs, numpy_helper

from amp_rewrite.certificate import attributes, bodies, calls, deduced_kinds, order, value_kinds
from amp_rewrite.certificate.numbered import MISSING, Body, Bound, Node, Numbered, Scope
from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.certificate.value_kinds import FLOAT, Kind
from amp_rewrite.errors import EXPORT_AGAIN, ModelError

Step = Generator["Step", Any, Any]
"""A part of the work that may ask for others, whose results it is sent: nothing here recurses."""

_CAST, _CONSTANT = ("", "Cast"), ("", "Constant")


def number(model: ModelProto, folder: Folder | None, functions: calls.Functions) -> Numbered:
    """The values of a model whose calls of these functions are taken apart.

    Raises ModelError for a value that is not defined, defined twice, or that depends on itself.
    """
    return _Numbering(Numbered(model, folder), functions).run()


def imports(entries: Iterable[Any]) -> dict[str, int]:
    """The opset of each domain; the last import counts. Without one, the newest is meant."""
    found = {calls.canonical(entry.domain): entry.version for entry in entries}
    return {"": defs.onnx_opset_version(), **found}


class _Numbering:
    def __init__(self, made: Numbered, functions: calls.Functions) -> None:
        self._made, self._functions = made, functions
        self._root = Scope({}, None, imports(made.proto.opset_import))

    def run(self) -> Numbered:
        made, graph = self._made, self._made.proto.graph
        fixed = (
            {t.name for t in graph.initializer} if made.proto.ir_version < _OVERRIDABLE else frozenset[str]()
        )
        defaults = {t.name: value_kinds.of_element(t.data_type) for t in graph.initializer}
        for info in graph.input:
            if info.name not in fixed:
                kind = value_kinds.of_type(info.type) or defaults.get(info.name)
                made.inputs[info.name] = self._root.names[info.name] = made.add(info.name, None, kind)
        _run(self._graph(graph, self._root))
        made.outputs = [(info.name, self._find(info.name, self._root)) for info in graph.output]
        return made

    def _graph(self, graph: GraphProto, scope: Scope) -> Step:
        """All of a graph but its inputs, which are in its scope."""
        names, made = scope.names, self._made
        given = frozenset(names)
        for info in (*graph.value_info, *graph.output):
            made.declared[info.name] = value_kinds.of_type(info.type)
        for tensor in graph.initializer:
            if tensor.name not in given:
                names[tensor.name] = made.add(tensor.name, None, value_kinds.of_element(tensor.data_type))
                made.stored[names[tensor.name]] = tensor
        for sparse in graph.sparse_initializer:
            kind = value_kinds.of_element(sparse.values.data_type)
            names[sparse.values.name] = made.add(sparse.values.name, None, kind)
            made.stored[names[sparse.values.name]] = sparse
        yield self._nodes(graph.node, scope)

    def _nodes(self, protos: Iterable[Any], scope: Scope) -> Step:
        for row in order.ordered(self._defined(protos, scope), scope):
            proto, operator, _, first, count = row
            if operator == _CONSTANT:
                self._store(first, proto, scope)
                continue
            name = (*operator, proto.overload)
            if self._functions and name in self._functions:
                yield self._call(row, scope, self._functions[name])
                continue
            self._node(row, scope)
            if operator in bodies.KNOWN or operator[0]:
                yield self._bodies(self._made.makers[first] if count else None, row, scope)

    def _defined(self, protos: Iterable[Any], scope: Scope) -> list[order.Row]:
        """The nodes of a graph; their outputs get numbers, one after the other."""
        names, add, rows = scope.names, self._made.add, list[order.Row]()
        for proto in protos:
            outputs = proto.output
            first = len(self._made.roots)
            for name in outputs:
                number = add(name)
                if name:
                    if name in names:
                        raise ModelError(f"defines '{name}' twice", remedy=EXPORT_AGAIN)
                    names[name] = number
            operator = (calls.canonical(proto.domain), proto.op_type)
            rows.append((proto, operator, list(proto.input), first, len(outputs)))
        return rows

    def _find(self, name: str, scope: Scope) -> int:
        found = scope.find(name)
        if found is None:
            raise ModelError(f"uses '{name}', which is not defined", remedy=EXPORT_AGAIN)
        return found

    def _inputs(self, read: Sequence[str], scope: Scope) -> list[int]:
        """The numbers of what a node reads, without omitted ones at the end."""
        roots, names = self._made.roots, scope.names
        found = [roots[names[n] if n in names else self._find(n, scope)] if n else MISSING for n in read]
        while found and found[-1] == MISSING:
            found.pop()
        return found

    def _node(self, row: order.Row, scope: Scope) -> None:
        proto, operator, read, first, count = row
        made, version = self._made, scope.versions.get(operator[0], 1)
        inputs = self._inputs(read, scope)
        kinds = [made.kinds[value] for value in inputs]
        if None in kinds:
            deduced_kinds.deduce(made, operator, version, inputs)
            kinds = [made.kinds[value] for value in inputs]
        node = Node(proto, operator, version, inputs, first, count, scope, None)
        for number, rule in enumerate(value_kinds.rules(*operator, version, count), start=first):
            made.makers[number] = node
            made.kinds[number] = self._kind(rule, node, number, kinds)
        if operator == _CAST and made.kinds[first] == FLOAT and made.kinds[inputs[0]] == FLOAT:
            made.roots[first] = inputs[0]

    def _kind(self, rule: value_kinds.Rule | None, node: Node, number: int, kinds: Sequence[Kind]) -> Kind:
        if rule is not None and rule[0] == "typed":
            return self._typed(rule[1], node)
        found = value_kinds.applied(rule, kinds)
        return self._made.declared.get(self._made.names[number]) if found is None else found

    def _typed(self, rule: tuple[str, int | None, Kind], node: Node) -> Kind:
        name, like, default = rule
        said = attributes.of(node).get(name)
        if said is not None:
            return _stated(said.attribute, node.operator)
        if like is None:
            return default
        return self._made.kinds[node.inputs[like]] if like < len(node.inputs) else None

    def _store(self, first: int, proto: Any, scope: Scope) -> None:
        tensor = _constant(attributes.bound(proto, scope))
        self._made.stored[first] = tensor
        element = tensor.data_type if isinstance(tensor, TensorProto) else tensor.values.data_type
        self._made.kinds[first] = value_kinds.of_element(element)

    def _call(self, row: order.Row, scope: Scope, function: Any) -> Step:
        """Takes a call apart: the outputs of the call are those of the function's body."""
        proto, _, read, first, count = row
        made, inputs = self._made, self._inputs(read, scope)
        given = attributes.bound(proto, scope)
        inner = Scope({}, self._root, imports(function.opset_import), None)
        known = {a.name: Bound(a, inner) for a in function.attribute_proto}
        inner.bound = known | {name: given[name] for name in given if name in {*function.attribute, *known}}
        for position, name in enumerate(function.input):
            inner.names[name] = inputs[position] if position < len(inputs) else MISSING
        made.calls += 1
        yield self._nodes(function.node, inner)
        for port, name in enumerate(function.output[:count]):
            value = self._find(name, inner)
            made.roots[first + port], made.kinds[first + port] = made.roots[value], made.kinds[value]

    def _bodies(self, node: Node | None, row: order.Row, scope: Scope) -> Step:
        """Numbers the bodies of a node, and with them the kinds of its outputs."""
        found = list[Body]()
        for name, held in attributes.bound(row[0], scope).items():
            for graph in attributes.graphs(held.attribute):
                found.append((yield self._body(name, graph, held.scope, node)))
        if node is None or not found:
            return
        node.bodies = sorted(found, key=lambda body: body.attribute)
        kinds = bodies.results(node, [[self._made.kinds[value] for value in body.outputs] for body in found])
        for port, kind in enumerate(kinds[: node.count]):
            self._made.kinds[node.first + port] = kind

    def _body(self, name: str, graph: GraphProto, scope: Scope, node: Node | None) -> Step:
        inner, made = Scope({}, scope, scope.versions, scope.bound), self._made
        given = [] if node is None else bodies.entering(node, [made.kinds[v] for v in node.inputs])
        numbers = list[int]()
        for position, info in enumerate(graph.input):
            kind = given[position] if position < len(given) else None
            numbers.append(made.add(info.name, None, kind or value_kinds.of_type(info.type)))
            inner.names[info.name] = numbers[-1]
        yield self._graph(graph, inner)
        return Body(name, numbers, [self._find(info.name, inner) for info in graph.output])


_OVERRIDABLE = 4
"""From this IR version on, the caller may give another value for an initializer that is an input."""


def _run(step: Step) -> Any:
    """Carries out a step and all that it asks for."""
    stack, value = [step], None
    while stack:
        try:
            asked = stack[-1].send(value)
        except StopIteration as end:
            stack.pop()
            value = end.value
        else:
            stack.append(asked)
            value = None
    return value


def _stated(attribute: AttributeProto, operator: tuple[str, str]) -> Kind:
    if attribute.type == AttributeProto.TENSOR:
        return value_kinds.of_element(attribute.t.data_type)
    if attribute.type == AttributeProto.STRING:
        return value_kinds.of_element(value_kinds.by_name(attribute.s.decode(errors="replace")))
    kind = value_kinds.of_element(attribute.i)
    return (value_kinds.SEQUENCE, kind) if operator[1] == "SequenceEmpty" else kind


def _constant(given: Mapping[str, Bound]) -> Any:
    """What a Constant node stores, as a tensor, dense or sparse."""
    for name, held in given.items():
        attribute = held.attribute
        if name == "value":
            return attribute.t
        if name == "sparse_value":
            return attribute.sparse_tensor
        if name in _SCALARS:
            field, dtype = _SCALARS[name]
            return numpy_helper.from_array(np.array(getattr(attribute, field), dtype))
    raise ModelError("has a Constant without a value", remedy=EXPORT_AGAIN)


_SCALARS: Mapping[str, tuple[str, Any]] = {
    "value_float": ("f", np.float32),
    "value_floats": ("floats", np.float32),
    "value_int": ("i", np.int64),
    "value_ints": ("ints", np.int64),
    "value_string": ("s", object),
    "value_strings": ("strings", object),
}
