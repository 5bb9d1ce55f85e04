"""Inlining of model-local functions, so that the nodes of their bodies can be coloured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from amp_rewrite.model import traversal
from amp_rewrite.model.graph_edits import Numbering, UniqueNames
from amp_rewrite.model.loading import root_cause
from amp_rewrite.onnx_types import element_types, schema, version_changes


def inline(model: ir.Model) -> str | None:
    """Inline the functions of `model`; return a warning if some stay in float32, along with their calls.

    If one cannot be inlined, all stay. A function with the name of an operator always stays: runtimes differ
    in resolving such a call. Raises ModelError if inlining would create too many nodes.
    """
    if not model.functions:
        return None
    name_clashes = [key for key in model.functions if _is_operator(key, model)]
    element_types.refuse_too_many(model, name_clashes)
    try:
        trial = copied(model)
        _prepare(trial, name_clashes)
        trial = _Inlining(lambda function: function.identifier() not in name_clashes)(trial).model
    except Exception as error:  # the pass raises errors of many kinds
        return f"functions stay float32: they cannot be inlined ({root_cause(error)})"
    model.graph, functions = trial.graph, dict(trial.functions)
    model.functions.clear()
    model.functions.update(functions)
    names = ", ".join(schema.written(domain, name) for domain, name, _ in name_clashes)
    return f"functions stay float32: there are operators of the same name ({names})" if name_clashes else None


class _Inlining(InlinePass):
    """onnx-ir's inlining pass, in linear time.

    The pass searches unique names for every copy of a body from 1 on: quadratic in the number of calls. Here
    the body gets the same names before it is copied. With an onnx-ir that lacks the overridden method, the
    result is the same, only slower.
    """

    def __init__(self, criteria: Callable[[ir.Function], bool]) -> None:
        super().__init__(criteria)
        self._bodies: dict[ir.OperatorIdentifier, tuple[_Named, _Named]] = {}
        self._node_numbering, self._value_numbering = Numbering(), Numbering()

    def _reset(self, model: ir.Model) -> None:
        """Prepare a run without abbreviations of functions, unused here: quadratic in their number."""
        super()._reset(ir.Model(ir.Graph((), (), nodes=()), ir_version=model.ir_version))
        self._functions, self._opset_imports = model.functions, model.opset_imports
        self._function_id_abbreviations = dict.fromkeys(model.functions, "")

    def _instantiate_call(
        self, node: ir.Node, call_site_id: str
    ) -> tuple[Sequence[ir.Node], Sequence[ir.Value]]:
        self._node_context.clear()  # the call stacks, unused here: quadratic in the depth
        key = node.op_identifier()
        if key not in self._bodies:
            self._bodies[key] = _body(self._functions[key])
        nodes, values = self._bodies[key]
        _rename(nodes, self._node_numbering, self._used_node_names)
        _rename(values, self._value_numbering, self._used_value_names)
        return super()._instantiate_call(node, call_site_id)


_Named = Sequence[tuple[ir.Node | ir.Value, str]]
"""The nodes or values that get a name in every copy of a body, with their names, in naming order."""


def _body(function: ir.Function) -> tuple[_Named, _Named]:
    nodes = tuple(traversal.nodes_inner_first(function))
    values = (value for node in nodes for value in node.outputs)
    return (
        tuple((node, node.name or "node") for node in nodes),
        tuple((value, value.name or "val") for value in values),
    )


def _rename(entries: _Named, numbered: Numbering, used_names: set[str]) -> None:
    names = [numbered.free(name, used_names) for _, name in entries]
    for (one, _), name in zip(entries, names, strict=True):
        one.name = name
    used_names.difference_update(names)  # the pass adds them


def copied(model: ir.Model) -> ir.Model:
    """Return a copy of the model, with undefined values, such as sparse initializers, as inputs."""
    for function in model.functions.values():
        _close_over(function, model)
    inputs, undefined = model.graph.inputs, _undefined(model.graph)
    inputs.extend(undefined)
    try:
        copy = model.clone()
        del copy.graph.inputs[len(inputs) - len(undefined) :]
    finally:
        del inputs[len(inputs) - len(undefined) :]
    return copy


def _undefined(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    used = dict.fromkeys(value for node in graph.all_nodes() for value in node.inputs if value is not None)
    return [value for value in used if value.graph is None]


def _close_over(function: ir.Function, model: ir.Model) -> None:
    """Turn captured values of the caller, valid in onnxruntime but not in ONNX, into inputs of a function."""
    undefined, graph = _undefined(function), model.graph
    if not undefined:
        return
    defined = [value for node in graph for value in node.outputs]
    values_by_name = {value.name: value for value in (*graph.inputs, *graph.initializers.values(), *defined)}
    for value in undefined:
        function.inputs.append(value)
        for call in [node for node in graph.all_nodes() if node.op_identifier() == function.identifier()]:
            call.resize_inputs(len(function.inputs))
            call.replace_input_with(len(function.inputs) - 1, values_by_name.get(value.name))


def _is_operator(key: ir.OperatorIdentifier, model: ir.Model) -> bool:
    domain, name, _ = key
    version = element_types.versions(model.graph.opset_imports)(domain)
    return schema.find(domain, name, version) is not None


def _prepare(model: ir.Model, retained: Collection[ir.OperatorIdentifier]) -> None:
    """Prepare functions and calls for inlining.

    A function gets the model's opset versions, if its nodes have the same semantics in both. Omitted outputs
    of a call get names: the nodes of the body define them, and may use them. Types declared inside a function
    are removed: they need not hold for this call.
    """
    names = UniqueNames(traversal.graphs(model.graph))
    inlined = [function for key, function in model.functions.items() if key not in retained]
    for function in inlined:
        _unify_imports(function, model)
    for node in (node for function in inlined for node in function.all_nodes()):
        for value in node.outputs:
            value.type = None
    for node in (node for whole in (model.graph, *inlined) for node in whole.all_nodes()):
        callee = model.functions.get(node.op_identifier())
        if callee is None or callee.identifier() in retained:
            continue
        node.resize_outputs(len(callee.outputs))
        for value in node.outputs:
            value.name = value.name or names.of_value(value, "unread")


def _unify_imports(function: ir.Function, model: ir.Model) -> None:
    for domain, version in function.opset_imports.items():
        ours = model.opset_imports.get(domain, version)
        used = [
            node for node in function.all_nodes() if schema.canonical(node.domain) == schema.canonical(domain)
        ]
        if all(_means_the_same(node, *sorted((version, ours))) for node in used):
            function.opset_imports[domain] = ours


def _means_the_same(node: ir.Node, old: int, new: int) -> bool:
    """Return whether a node has the same semantics at two versions, whatever its types in a call."""
    one, other = (schema.find(node.domain, node.op_type, version) for version in (old, new))
    if one is None or other is None:
        return False
    return one.since == other.since or (
        not schema.canonical(node.domain) and version_changes.same(node, old, new, {}, lambda _: None)
    )
