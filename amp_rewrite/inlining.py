"""Model-local functions: their calls become the nodes of their bodies, so that these can be coloured."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from amp_rewrite import element_types, schema
from amp_rewrite.model_io import root_cause
from amp_rewrite.names import Names


def inline(model: ir.Model) -> str | None:
    """Inlines the functions of `model`; returns a warning where some stay: float32, as are their calls.

    When one cannot be inlined, all stay. One that has the name of an operator stays alone: which of the two
    a call means is up to the runtime.
    """
    if not model.functions:
        return None
    named = [key for key in model.functions if _is_operator(key, model)]
    try:
        trial = _copy(model)
        _prepare(trial, named)
        trial = InlinePass(lambda function: function.identifier() not in named)(trial).model
    except Exception as error:  # a pass reports the many ways of an odd model in many ways
        return f"functions stay float32: they cannot be inlined ({root_cause(error)})"
    model.graph, kept = trial.graph, dict(trial.functions)
    model.functions.clear()
    model.functions.update(kept)
    names = ", ".join(schema.written(domain, name) for domain, name, _ in named)
    return f"functions stay float32: there are operators of the same name ({names})" if named else None


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
    names = Names(model)
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
