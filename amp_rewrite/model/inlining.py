"""Model-local functions: their calls become the nodes of their bodies, so that these can be coloured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from amp_rewrite.model.loading import root_cause
from amp_rewrite.model.traversal import graphs
from amp_rewrite.model.unique_names import Numbering, UniqueNames
from amp_rewrite.onnx_types import element_types, inlined_size, schema


def inline(model: ir.Model) -> str | None:
    """Inlines the functions of `model`; returns a warning where some stay: float32, as are their calls.

    When one cannot be inlined, all stay. One that has the name of an operator stays alone: which of the two
    a call means is up to the runtime. Raises ModelError where there would be more nodes than make sense.
    """
    if not model.functions:
        return None
    named = [key for key in model.functions if _is_operator(key, model)]
    inlined_size.refuse_too_many(model, named)
    try:
        trial = _copy(model)
        _prepare(trial, named)
        trial = _Inlining(lambda function: function.identifier() not in named)(trial).model
    except Exception as error:  # a pass reports the many ways of an odd model in many ways
        return f"functions stay float32: they cannot be inlined ({root_cause(error)})"
    model.graph, kept = trial.graph, dict(trial.functions)
    model.functions.clear()
    model.functions.update(kept)
    names = ", ".join(schema.written(domain, name) for domain, name, _ in named)
    return f"functions stay float32: there are operators of the same name ({names})" if named else None


class _Inlining(InlinePass):
    """onnx-ir's pass, in linear time.

    It gives every copy of a body names that are free, and looks for each from 1 on: the square of the calls.
    Here a body has such names, the same ones, before it is copied. An onnx-ir that has no such method calls
    none of this, and nothing but the time is lost.
    """

    def __init__(self, criteria: Callable[[ir.Function], bool]) -> None:
        super().__init__(criteria)
        self._bodies: dict[ir.OperatorIdentifier, tuple[_Named, _Named]] = {}
        self._of_nodes, self._of_values = Numbering(), Numbering()

    def _instantiate_call(
        self, node: ir.Node, call_site_id: str
    ) -> tuple[Sequence[ir.Node], Sequence[ir.Value]]:
        self._node_context.clear()  # who called whom, of which nothing comes: it grows with the depth squared
        key = node.op_identifier()
        if key not in self._bodies:
            self._bodies[key] = _body(self._functions[key])
        nodes, values = self._bodies[key]
        _rename(nodes, self._of_nodes, self._used_node_names)
        _rename(values, self._of_values, self._used_value_names)
        return super()._instantiate_call(node, call_site_id)


_Named = Sequence[tuple[ir.Node | ir.Value, str]]
"""What gets names in every copy of a body, with its names there, in the order in which it gets them."""


def _body(function: ir.Function) -> tuple[_Named, _Named]:
    nodes = tuple(_inner_first(function))
    values = (value for node in nodes for value in node.outputs)
    return (
        tuple((node, node.name or "node") for node in nodes),
        tuple((value, value.name or "val") for value in values),
    )


def _inner_first(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    for node in nodes:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                yield from _inner_first(attribute.as_graph())
            elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
                for graph in attribute.as_graphs():
                    yield from _inner_first(graph)
        yield node


def _rename(named: _Named, numbered: Numbering, taken: set[str]) -> None:
    names = [numbered.free(name, taken) for _, name in named]
    for (one, _), name in zip(named, names, strict=True):
        one.name = name
    taken.difference_update(names)  # by those who will take them


def _copy(model: ir.Model) -> ir.Model:
    """A copy of the model; what nothing makes, such as a sparse initializer, is copied as an input is."""
    for function in model.functions.values():
        _close(function, model)
    inputs, loose = model.graph.inputs, _loose(model.graph)
    inputs.extend(loose)
    try:
        copy = model.clone()
        del copy.graph.inputs[len(inputs) - len(loose) :]
    finally:
        del inputs[len(inputs) - len(loose) :]
    return copy


def _loose(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    read = dict.fromkeys(value for node in graph.all_nodes() for value in node.inputs if value is not None)
    return [value for value in read if value.graph is None]


def _close(function: ir.Function, model: ir.Model) -> None:
    """What a function reads of its caller, which onnxruntime allows and ONNX does not, becomes its input."""
    loose, graph = _loose(function), model.graph
    if not loose:
        return
    made = [value for node in graph for value in node.outputs]
    named = {value.name: value for value in (*graph.inputs, *graph.initializers.values(), *made)}
    for value in loose:
        function.inputs.append(value)
        for call in [node for node in graph.all_nodes() if node.op_identifier() == function.identifier()]:
            call.resize_inputs(len(function.inputs))
            call.replace_input_with(len(function.inputs) - 1, named.get(value.name))


def _is_operator(key: ir.OperatorIdentifier, model: ir.Model) -> bool:
    domain, name, _ = key
    version = element_types.versions(model.graph.opset_imports)(domain)
    return schema.find(domain, name, version) is not None


def _prepare(model: ir.Model, kept: Collection[ir.OperatorIdentifier]) -> None:
    """Makes ready what is to be inlined.

    A function that imports other versions gets the model's where they say the same of all that it calls.
    Outputs that a call leaves out get names: the nodes of the body make them, and may read them. What a
    function says of the types inside goes: it need not hold for this call.
    """
    names = UniqueNames(graphs(model.graph))
    inlined = [function for key, function in model.functions.items() if key not in kept]
    for function in inlined:
        _settle_imports(function, model)
    for node in (node for function in inlined for node in function.all_nodes()):
        for value in node.outputs:
            value.type = None
    for node in (node for whole in (model.graph, *inlined) for node in whole.all_nodes()):
        called = model.functions.get(node.op_identifier())
        if called is None or called.identifier() in kept:
            continue
        node.resize_outputs(len(called.outputs))
        for value in node.outputs:
            value.name = value.name or names.of_value(value, "unread")


def _settle_imports(function: ir.Function, model: ir.Model) -> None:
    for domain, version in function.opset_imports.items():
        wanted = model.opset_imports.get(domain, version)
        called = {node.op_type for node in function.all_nodes() if node.domain == domain}
        if all(_is_same(domain, operator, version, wanted) for operator in called):
            function.opset_imports[domain] = wanted


def _is_same(domain: str, operator: str, version: int, other: int) -> bool:
    """Whether two versions of an operator set have an operator in the same form."""
    one, another = (schema.find(domain, operator, known) for known in (version, other))
    return one is not None and another is not None and one.since == another.since
