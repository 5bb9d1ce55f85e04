"""Numbering of the values of a model: every graph, and every call of a function, in the order of nodes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, defs

from amp_rewrite.certificate import tensors, value_kinds
from amp_rewrite.certificate.numbered import (
    CONSTANT,
    MISSING,
    WITH_BODIES,
    Body,
    Bound,
    Node,
    Numbered,
    Scope,
    add_inputs,
    add_stored,
    attributes_of,
    bound_attributes,
    constant_value,
    deduce_kinds,
    entering_bodies,
    graphs_of,
    is_plain_cast,
    kinds_entering_bodies,
    kinds_leaving_bodies,
    repeating_node,
)
from amp_rewrite.certificate.value_kinds import (
    CAST,
    CAST_LIKE,
    FLOAT,
    Kind,
    as_cast,
    is_operator,
)
from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.operators.record import Typed


def number(model: Numbered, functions: Functions, *, believed: bool = True) -> Numbered:
    """Number the values of a model, which has none yet, with calls of these functions inlined.

    Unless it is `believed`, its declarations are ignored, except those of inputs. Raises ModelError for a
    value that is not defined, defined twice, or depends on itself.
    """
    return _Numbering(model, functions, believed).run()


def imports(entries: Iterable[Any]) -> dict[str, int]:
    """Return the opset of each domain; ONNX domains that are not imported default to the newest.

    Raises ModelError for two versions of one domain: onnxruntime takes the last, onnx's reference the newest.
    """
    versions: dict[str, int] = {}
    for entry in entries:
        domain = canonical_domain(entry.domain)
        if versions.setdefault(domain, entry.version) != entry.version:
            title = domain or "ai.onnx"
            raise ModelError(f"imports two versions of '{title}'", remedy=EXPORT_AGAIN)
    return {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version(), **versions}


class _Numbering:
    def __init__(self, model: Numbered, functions: Functions, believed: bool) -> None:
        self._made, self._functions, self._believed = model, functions, believed
        self._root = Scope(model.visible, None, imports(model.proto.opset_import))
        self._order = Order()
        self._operators: dict[tuple[str, str], tuple[str, str]] = {}

    def run(self) -> Numbered:
        model, graph = self._made, self._made.proto.graph
        add_inputs(model)
        self._graph(graph, self._root)
        model.outputs = [(info.name, self._find(info.name, self._root)) for info in graph.output]
        return model

    def _graph(self, graph: GraphProto, scope: Scope) -> None:
        """Number a graph except its inputs, which are in its scope already."""
        names, model = scope.names, self._made
        model.scopes.append((graph, scope))
        if self._believed:
            scope.declared = {info.name: info for info in (*graph.value_info, *graph.output)}
        initializers = model.initial if scope is self._root else tensors.initial(graph)
        add_stored(model, initializers, names)
        self._nodes(graph.node, scope)

    def _nodes(self, protos: Iterable[Any], scope: Scope) -> None:
        functions = self._functions
        for row in self._order.of(self._defined(protos, scope), scope):
            proto, operator, _, first, count = row
            if operator == CONSTANT:
                if count:
                    self._store(first, proto, scope)
                continue
            function = functions.get((*operator, proto.overload)) if functions else None
            if function is not None:
                self._call(row, scope, function)
                continue
            self._node(row, scope)
            if operator in WITH_BODIES or operator[0]:
                self._bodies(self._made.makers[first] if count else None, row, scope)

    def _defined(self, protos: Iterable[Any], scope: Scope) -> list[Row]:
        """Return the nodes of a graph as rows, with consecutive numbers for their outputs."""
        names, rows, outputs = scope.names, list[Row](), list[str]()
        names.pop("", None)  # not a value
        number = first = len(self._made.roots)
        find, operators = names.__getitem__, self._operators
        for proto in protos:
            inputs, key = proto.input[:], (proto.domain, proto.op_type)  # a list: twice as quick
            try:
                reads: Reads = tuple(map(find, inputs))
            except KeyError:
                reads = [(names.get(name) or name) if name else MISSING for name in inputs]
            for name in proto.output[:]:
                if name:
                    if name in names:
                        raise ModelError(f"defines '{name}' twice", remedy=EXPORT_AGAIN)
                    names[name] = number
                outputs.append(name)
                number += 1
            rows.append((proto, operators.get(key) or self._operator(*key), reads, first, number - first))
            first = number
        self._made.add_all(outputs)
        return rows

    def _operator(self, domain: str, name: str) -> tuple[str, str]:
        """Return the domain and the name of an operator, as one object for all its nodes."""
        operator = (canonical_domain(domain), name)
        self._operators[domain, name] = self._operators.setdefault(operator, operator)
        return self._operators[operator]

    def _find(self, name: str, scope: Scope) -> int:
        value = scope.find(name)
        if value is None:
            raise ModelError(f"uses '{name}', which is not defined", remedy=EXPORT_AGAIN)
        return value

    def _inputs(self, reads: Reads, scope: Scope) -> list[int]:
        """Return the numbers of a node's operands, without trailing omitted ones."""
        roots = self._made.roots
        if isinstance(reads, tuple):
            values = [roots[n] for n in reads]
        else:
            values = [roots[n if isinstance(n, int) else self._find(n, scope)] for n in reads]
        while values and values[-1] == MISSING:
            values.pop()
        return values

    def _node(self, row: Row, scope: Scope) -> None:
        proto, operator, reads, first, count = row
        model, version = self._made, scope.versions.get(operator[0], 1)
        inputs = self._inputs(reads, scope)
        kinds = tuple([model.kinds[value] for value in inputs])
        if None in kinds:
            deduce_kinds(model, operator, version, inputs)
            kinds = tuple([model.kinds[value] for value in inputs])
        if operator == CAST_LIKE and (cast := as_cast(proto, kinds[1:])) is not None:
            proto, operator, inputs, kinds = cast, CAST, inputs[:1], kinds[:1]
        node = Node(proto, operator, version, inputs, first, count, scope, None)
        if count:
            model.nodes.append(node)
        output_kinds = value_kinds.plain(operator, version, count, kinds)
        model.makers[first : first + count] = [node] * count
        model.kinds[first : first + count] = output_kinds
        if None in output_kinds:
            self._unknown(node)
        if operator == CAST and count == 1 and kinds == (FLOAT,) and model.kinds[first] == FLOAT:
            model.roots[first] = inputs[0] if is_plain_cast(node) else first

    def _unknown(self, node: Node) -> None:
        """Set the kinds of outputs that do not follow from those of the inputs."""
        model = self._made
        rules = value_kinds.rules(*node.operator, node.version, node.count)
        for number, rule in enumerate(rules, start=node.first):
            if rule is not None and rule[0] == "typed":
                model.kinds[number] = self._typed(rule[1], node)
            elif model.kinds[number] is None:
                kind = _declared_kind(node.scope, model.names[number])
                if kind is None and (custom := model.op_types.get(node.operator)) is not None:
                    assumed = FLOAT if model.names[number] in model.assumed else None
                    kind = custom.ports.get(~(number - node.first), assumed)
                    model.told.update(() if kind is None else (number,))
                model.kinds[number] = kind

    def _typed(self, typed: Typed, node: Node) -> Kind:
        bound = attributes_of(node).get(typed.attribute)
        if bound is not None:
            return value_kinds.of_typed(value_kinds.stated_element(bound.attribute), node.operator)
        if typed.like is None:
            return value_kinds.of_typed(typed.default or 0, node.operator)
        return self._made.kinds[node.inputs[typed.like]] if typed.like < len(node.inputs) else None

    def _store(self, first: int, proto: Any, scope: Scope) -> None:
        tensor = constant_value(proto, scope)
        self._made.stored[first] = tensor
        self._made.kinds[first] = value_kinds.of_tensor(tensor)

    def _call(self, row: Row, scope: Scope, function: Any) -> None:
        """Inline a call: its outputs are those of the function's body."""
        proto, _, reads, first, count = row
        model = self._made
        if count > len(function.output) or len(reads) > len(function.input):
            problem = f"calls '{function.name}' with more inputs or outputs than it has"
            raise ModelError(problem, remedy=EXPORT_AGAIN)
        arguments = bound_attributes(proto, scope)
        inner = Scope({}, self._root, imports(function.opset_import), None, scope.repeated)
        inner.is_custom = scope.is_custom
        defaults = {a.name: Bound(a, inner) for a in function.attribute_proto}
        inner.bound = defaults | arguments  # including undeclared ones, which runtimes accept
        numbers = [each if isinstance(each, int) else self._find(each, scope) for each in reads]
        inner.names.update(dict.fromkeys(function.input, MISSING))
        inner.names.update(zip(function.input, numbers, strict=False))
        model.calls += 1
        model.scopes.append((function, inner))
        self._nodes(function.node, inner)
        for port, name in enumerate(function.output[:count]):
            model.results[first + port] = self._find(name, inner)
            value = model.roots[model.results[first + port]]
            if model.kinds[value] is None and value != MISSING:
                model.kinds[value] = _declared_kind(scope, proto.output[port])
            model.roots[first + port], model.kinds[first + port] = value, model.kinds[value]

    def _bodies(self, node: Node | None, row: Row, scope: Scope) -> None:
        """Number the bodies of a node, and set the kinds of its outputs from theirs."""
        bodies = list[Body]()
        attributes = bound_attributes(row[0], scope)
        self._order.refuse_hidden(
            [graph for bound in attributes.values() for graph in graphs_of(bound.attribute)]
        )
        for name, bound in attributes.items():
            for graph in graphs_of(bound.attribute):
                bodies.append(self._body(name, graph, bound.scope, node))
        if node is None or not bodies:
            return
        node.bodies = sorted(bodies, key=lambda body: str(body.attribute))
        for port, kind in enumerate(kinds_leaving_bodies(node, self._made.kinds)[: node.count]):
            self._made.kinds[node.first + port] = kind

    def _body(self, name: str, graph: GraphProto, scope: Scope, node: Node | None) -> Body:
        inner, model = Scope({}, scope, scope.versions, scope.bound, repeating_node(node)), self._made
        is_custom = node is not None and not is_operator(*node.operator)
        inner.is_custom = scope.is_custom or is_custom
        operands = () if node is None else entering_bodies(node, model.read(node))
        kinds = [model.kinds[value] for value in operands]
        input_kinds = kinds if node is None else kinds_entering_bodies(node, kinds)
        numbers, initializers = list[int](), tensors.initial(graph)
        inputs = [info for info in graph.input if info.name not in initializers]  # the node passes only these
        if len({info.name for info in inputs}) < len(inputs):
            raise ModelError(f"has a body '{graph.name}' with two inputs of one name", remedy=EXPORT_AGAIN)
        for position, info in enumerate(inputs):
            kind = input_kinds[position] if position < len(input_kinds) else None
            if kind is None and self._believed:
                kind = value_kinds.of_type(info.type)
            numbers.append(model.add(info.name, None, kind))
            inner.names[info.name] = numbers[-1]
            if is_custom:
                model.typed[numbers[-1]] = info.type
        model.passed.update(zip(numbers, operands, strict=False))
        self._graph(graph, inner)
        names = tuple(info.name for info in (*graph.input, *graph.output))
        return Body(name, numbers, [self._find(info.name, inner) for info in graph.output], names)


def _declared_kind(scope: Scope, name: str) -> Kind:
    """Return the declared kind of a value; None without a declaration."""
    info = scope.declared.get(name)
    return None if info is None else value_kinds.of_type(info.type)


# ---- topological order


Read = int | str
"""The number of a value defined before its consumer in the same graph, else the name."""

Reads = tuple[int, ...] | list[Read]
"""The operands of a node: a tuple if all are defined before it in its own graph."""

Row = tuple[Any, tuple[str, str], Reads, int, int]
"""A node, its operator, its operands, the number of its first output, and the number of outputs."""


class Order:
    """Topological order of nodes, with a cache of the outer values that each body reads."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, frozenset[str]]] = {}  # with the body, which keeps its id in use

    def of(self, rows: list[Row], scope: Scope) -> Sequence[Row]:
        """Return the nodes of a graph in topological order; ModelError for a cycle."""
        names = scope.names
        if not any(self._is_late(row, names) for row in rows if _reaches_out(row)):
            return rows
        producers = {number: i for i, row in enumerate(rows) for number in range(row[3], row[3] + row[4])}
        needs = [{producers[n] for n in self._numbers(row, names) if n in producers} for row in rows]
        try:
            return [rows[i] for i in TopologicalSorter(dict(enumerate(needs))).static_order()]
        except CycleError as error:
            raise ModelError("has nodes with cyclic dependencies", remedy=EXPORT_AGAIN) from error

    def refuse_hidden(self, graphs: Sequence[Any]) -> None:
        """Raise ModelError if a body defines a name that another body of the same node reads from outside:
        onnxruntime uses the outer value in both.
        """
        for graph in graphs if len(graphs) > 1 else ():
            outer_names = self._free(other for other in graphs if other is not graph)
            for name in _own(graph).intersection(outer_names):
                raise ModelError(f"defines '{name}' in a body, and around it", remedy=EXPORT_AGAIN)

    def _is_late(self, row: Row, names: Mapping[str, int]) -> bool:
        """Return whether a node precedes one of its producers."""
        return any(number >= row[3] for number in self._numbers(row, names))

    def _numbers(self, row: Row, names: Mapping[str, int]) -> Iterator[int]:
        """Yield the values of its own graph that a node reads, including those read in its bodies."""
        proto, operator, reads, _, _ = row
        yield from (each if isinstance(each, int) else names.get(each, MISSING) for each in reads)
        if operator in WITH_BODIES or operator[0]:
            yield from (names.get(name, MISSING) for name in self._free(_bodies_of((proto,))))

    def _free(self, graphs: Iterable[Any]) -> Iterator[str]:
        """Yield the names that bodies read from enclosing graphs."""
        for graph in graphs:
            if id(graph) not in self._known:
                names = {*_names_used(graph), *self._free(_bodies_of(graph.node))}
                self._known[id(graph)] = graph, frozenset(names - _own(graph))
            yield from self._known[id(graph)][1]


def _reaches_out(row: Row) -> bool:
    """Return whether a node or its bodies may read values not defined before it in its own graph."""
    return not isinstance(row[2], tuple) or bool(row[1][0]) or row[1] in WITH_BODIES


def _bodies_of(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from graphs_of(attribute)


def _names_used(graph: Any) -> Iterator[str]:
    """Yield the names that the nodes of a body read, and those of its outputs."""
    for node in graph.node:
        yield from node.input
    yield from (info.name for info in graph.output)


def _own(graph: Any) -> set[str]:
    """Return the names that a body defines."""
    own = {info.name for info in graph.input} | tensors.initial(graph).keys()
    return own | {name for node in graph.node for name in node.output}


# ---- functions, and their numbers of nodes once inlined


Key = tuple[str, str, str]
Functions = Mapping[Key, FunctionProto]


def canonical_domain(domain: str) -> str:
    """Return the canonical name of a domain: that of ONNX has two."""
    return "" if domain == "ai.onnx" else domain


def functions_of(model: ModelProto) -> Functions:
    """Return the functions of a model; ModelError for two of one name, or two defaults of one attribute."""
    functions: dict[Key, FunctionProto] = {}
    for function in model.functions:
        if len({each.name for each in function.attribute_proto}) < len(function.attribute_proto):
            raise ModelError(f"has two defaults of an attribute of '{function.name}'", remedy=EXPORT_AGAIN)
        name = canonical_domain(function.domain), function.name, function.overload
        if functions.setdefault(name, function) is not function:
            raise ModelError(f"has two functions '{function.name}'", remedy=EXPORT_AGAIN)
    return functions


def inlined_size(model: ModelProto, functions: Functions) -> int:
    """Return the number of nodes of a model once all calls are inlined; ModelError for recursion, and for a
    call of a function named like an operator: onnxruntime and onnx's reference take the operator, and another
    runtime may take the function.
    """
    calling = list[Key]()

    @functools.cache
    def size_of(name: Key) -> int:
        if name in calling:
            raise ModelError("has a function that calls itself", remedy=EXPORT_AGAIN)
        if is_operator(*name[:2]):
            title = ".".join(filter(None, name[:2]))
            raise ModelError(f"has a function named like the operator {title}", remedy="rename the function")
        calling.append(name)
        size = total(functions[name].node)
        calling.pop()
        return size

    def total(nodes: Iterable[Any]) -> int:
        names = ((canonical_domain(each.domain), each.op_type, each.overload) for each in _all_nodes(nodes))
        return sum(1 + (size_of(name) if name in functions else 0) for name in names)

    return total(model.graph.node)


def _all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield nodes, and those of their bodies."""
    for node in nodes:
        yield node
        for graph in _bodies_of([node]):
            yield from _all_nodes(graph.node)
