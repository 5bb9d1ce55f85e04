"""Numbers the values of a model: every graph, and every call of a function, in the order of its nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from onnx import GraphProto, ModelProto, defs

from amp_rewrite.certificate import (
    attributes,
    bodies,
    calls,
    cast_likes,
    constants,
    deduced_kinds,
    given_values,
    order,
    steps,
    tensors,
    value_kinds,
)
from amp_rewrite.certificate.cast_likes import CAST, CAST_LIKE
from amp_rewrite.certificate.numbered import MISSING, Body, Bound, Node, Numbered, Scope
from amp_rewrite.certificate.order import Order
from amp_rewrite.certificate.steps import Step
from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.certificate.value_kinds import FLOAT, Kind
from amp_rewrite.errors import EXPORT_AGAIN, ModelError


def number(
    model: ModelProto, folder: Folder | None, functions: calls.Functions, *, believed: bool = True
) -> Numbered:
    """The values of a model whose calls of these functions are taken apart.

    Unless it is `believed`, what it declares of values that are no inputs is not read. Raises ModelError for
    a value that is not defined, defined twice, or that depends on itself.
    """
    return _Numbering(Numbered(model, folder), functions, believed).run()


def imports(entries: Iterable[Any]) -> dict[str, int]:
    """The opset of each domain; without an import of one of ONNX's, the newest is meant.

    Raises ModelError for two versions of one domain: onnxruntime takes the last, onnx's reference the newest.
    """
    found: dict[str, int] = {}
    for entry in entries:
        domain = calls.canonical(entry.domain)
        if found.setdefault(domain, entry.version) != entry.version:
            title = domain or "ai.onnx"
            raise ModelError(f"imports two versions of '{title}'", remedy=EXPORT_AGAIN)
    return {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version(), **found}


class _Numbering:
    def __init__(self, made: Numbered, functions: calls.Functions, believed: bool) -> None:
        self._made, self._functions, self._believed = made, functions, believed
        self._root = Scope(made.visible, None, imports(made.proto.opset_import))
        self._order = Order()
        self._operators: dict[tuple[str, str], tuple[str, str]] = {}

    def run(self) -> Numbered:
        made, graph = self._made, self._made.proto.graph
        given_values.add_inputs(made)
        steps.run(self._graph(graph, self._root))
        made.outputs = [(info.name, self._find(info.name, self._root)) for info in graph.output]
        return made

    def _graph(self, graph: GraphProto, scope: Scope) -> Step:
        """All of a graph but its inputs, which are in its scope."""
        names, made = scope.names, self._made
        made.scopes.append((graph, scope))
        if self._believed:
            scope.declared = {info.name: info for info in (*graph.value_info, *graph.output)}
        stored = made.initial if scope is self._root else tensors.initial(graph)
        given_values.add_stored(made, stored, names)
        yield self._nodes(graph.node, scope)

    def _nodes(self, protos: Iterable[Any], scope: Scope) -> Step:
        functions, rows = self._functions, self._defined(protos, scope)
        if scope is self._root:
            self._made.rows = rows
        for row in self._order.of(rows, scope):
            proto, operator, _, first, count = row
            if operator == constants.OPERATOR:
                if count:
                    self._store(first, proto, scope)
                continue
            function = functions.get((*operator, proto.overload)) if functions else None
            if function is not None:
                yield self._call(row, scope, function)
                continue
            self._node(row, scope)
            if operator in bodies.KNOWN or operator[0]:
                yield self._bodies(self._made.makers[first] if count else None, row, scope)

    def _defined(self, protos: Iterable[Any], scope: Scope) -> list[order.Row]:
        """The nodes of a graph; their outputs get numbers, one after the other."""
        names, rows, made = scope.names, list[order.Row](), list[str]()
        names.pop("", None)  # which is no value
        number = first = len(self._made.roots)
        find, operators = names.__getitem__, self._operators
        for proto in protos:
            given, named = proto.input[:], (proto.domain, proto.op_type)  # a list: twice as quick
            try:
                read: order.Reads = tuple(map(find, given))
            except KeyError:
                read = [(names.get(name) or name) if name else MISSING for name in given]
            for name in proto.output[:]:
                if name:
                    if name in names:
                        raise ModelError(f"defines '{name}' twice", remedy=EXPORT_AGAIN)
                    names[name] = number
                made.append(name)
                number += 1
            rows.append((proto, operators.get(named) or self._operator(*named), read, first, number - first))
            first = number
        self._made.add_all(made)
        return rows

    def _operator(self, domain: str, name: str) -> tuple[str, str]:
        """The domain and the name of an operator: one object for all its nodes."""
        operator = (calls.canonical(domain), name)
        self._operators[domain, name] = self._operators.setdefault(operator, operator)
        return self._operators[operator]

    def _find(self, name: str, scope: Scope) -> int:
        found = scope.find(name)
        if found is None:
            raise ModelError(f"uses '{name}', which is not defined", remedy=EXPORT_AGAIN)
        return found

    def _inputs(self, read: order.Reads, scope: Scope) -> list[int]:
        """The numbers of what a node reads, without omitted ones at the end."""
        roots = self._made.roots
        if isinstance(read, tuple):
            found = [roots[n] for n in read]
        else:
            found = [roots[n if isinstance(n, int) else self._find(n, scope)] for n in read]
        while found and found[-1] == MISSING:
            found.pop()
        return found

    def _node(self, row: order.Row, scope: Scope) -> None:
        proto, operator, read, first, count = row
        made, version = self._made, scope.versions.get(operator[0], 1)
        inputs = self._inputs(read, scope)
        kinds = tuple([made.kinds[value] for value in inputs])
        if None in kinds:
            deduced_kinds.deduce(made, operator, version, inputs)
            kinds = tuple([made.kinds[value] for value in inputs])
        if operator == CAST_LIKE and (cast := cast_likes.as_cast(proto, kinds[1:])) is not None:
            proto, operator, inputs, kinds = cast, CAST, inputs[:1], kinds[:1]
        node = Node(proto, operator, version, inputs, first, count, scope, None)
        known = value_kinds.plain(operator, version, count, kinds)
        made.makers[first : first + count] = [node] * count
        made.kinds[first : first + count] = known
        if None in known:
            self._unknown(node)
        if operator == CAST and count == 1 and kinds == (FLOAT,) and made.kinds[first] == FLOAT:
            made.roots[first] = inputs[0] if attributes.is_plain_cast(node) else first

    def _unknown(self, node: Node) -> None:
        """The kinds of outputs that are not known by those of the inputs."""
        made = self._made
        rules = value_kinds.rules(*node.operator, node.version, node.count)
        for number, rule in enumerate(rules, start=node.first):
            if rule is not None and rule[0] == "typed":
                made.kinds[number] = self._typed(rule[1], node)
            elif made.kinds[number] is None:
                made.kinds[number] = _declared(node.scope, made.names[number])

    def _typed(self, rule: tuple[str, int | None, Kind], node: Node) -> Kind:
        name, like, default = rule
        said = attributes.of(node).get(name)
        if said is not None:
            return value_kinds.stated(said.attribute, node.operator)
        if like is None:
            return default
        return self._made.kinds[node.inputs[like]] if like < len(node.inputs) else None

    def _store(self, first: int, proto: Any, scope: Scope) -> None:
        tensor = constants.stored(proto, scope)
        self._made.stored[first] = tensor
        self._made.kinds[first] = value_kinds.of_tensor(tensor)

    def _call(self, row: order.Row, scope: Scope, function: Any) -> Step:
        """Takes a call apart: the outputs of the call are those of the function's body."""
        proto, _, read, first, count = row
        made = self._made
        given = attributes.bound(proto, scope)
        inner = Scope({}, self._root, imports(function.opset_import), None, scope.repeated)
        known = {a.name: Bound(a, inner) for a in function.attribute_proto}
        inner.bound = known | given  # those as well that it does not declare: runtimes take them
        numbers = [each if isinstance(each, int) else self._find(each, scope) for each in read]
        for name, number in itertools.zip_longest(
            function.input, numbers[: len(function.input)], fillvalue=MISSING
        ):
            inner.names[name] = number
        made.calls += 1
        made.scopes.append((function, inner))
        yield self._nodes(function.node, inner)
        for port, name in enumerate(function.output[:count]):
            made.results[first + port] = self._find(name, inner)
            value = made.roots[made.results[first + port]]
            if made.kinds[value] is None and value != MISSING:
                made.kinds[value] = _declared(scope, proto.output[port])
            made.roots[first + port], made.kinds[first + port] = value, made.kinds[value]

    def _bodies(self, node: Node | None, row: order.Row, scope: Scope) -> Step:
        """Numbers the bodies of a node, and with them the kinds of its outputs."""
        found = list[Body]()
        given = attributes.bound(row[0], scope)
        self._order.refuse_hidden(
            [graph for held in given.values() for graph in attributes.graphs(held.attribute)]
        )
        for name, held in given.items():
            for graph in attributes.graphs(held.attribute):
                found.append((yield self._body(name, graph, held.scope, node)))
        if node is None or not found:
            return
        node.bodies = sorted(found, key=lambda body: str(body.attribute))
        kinds = bodies.results(node, [[self._made.kinds[value] for value in body.outputs] for body in found])
        for port, kind in enumerate(kinds[: node.count]):
            self._made.kinds[node.first + port] = kind

    def _body(self, name: str, graph: GraphProto, scope: Scope, node: Node | None) -> Step:
        inner, made = Scope({}, scope, scope.versions, scope.bound, bodies.repeating(node)), self._made
        given = [] if node is None else bodies.entering(node, [made.kinds[v] for v in node.inputs])
        numbers, stored = list[int](), tensors.initial(graph)
        inputs = [info for info in graph.input if info.name not in stored]  # the node gives no others
        if len({info.name for info in inputs}) < len(inputs):
            raise ModelError(f"has a body '{graph.name}' with two inputs of one name", remedy=EXPORT_AGAIN)
        for position, info in enumerate(inputs):
            kind = given[position] if position < len(given) else None
            if kind is None and self._believed:
                kind = value_kinds.of_type(info.type)
            numbers.append(made.add(info.name, None, kind))
            inner.names[info.name] = numbers[-1]
        yield self._graph(graph, inner)
        names = tuple(info.name for info in (*graph.input, *graph.output))
        return Body(name, numbers, [self._find(info.name, inner) for info in graph.output], names)


def _declared(scope: Scope, name: str) -> Kind:
    """The kind that a graph declares of a value; None where it declares nothing."""
    info = scope.declared.get(name)
    return None if info is None else value_kinds.of_type(info.type)
