"""The ports of a node that share an element type, by its operator's schema and the target's kernels."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.onnx_types.element_types import Layouts, Types
from amp_rewrite.onnx_types.schema import TypeVar
from amp_rewrite.policy.kernel_table import Support
from amp_rewrite.policy.targets import Target

OPAQUE = TypeVar("?")
"""The type variable of an operator without a schema: all its float32 ports."""

FUNCTION = TypeVar("function")
"""The same for the call of a function that stays."""


class PortGroup(NamedTuple):
    """Ports that share a type variable, the types it may take, and whether the target runs it in half.

    It can change only if all inputs that are `typed` have a known type: its own inputs, or for operators that
    put elements into containers, or take them out, all inputs of the node.
    """

    var: TypeVar
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    allowed: frozenset[str]
    runs: bool
    typed: tuple[int, ...]


class _Layout(NamedTuple):
    groups: tuple[PortGroup, ...]
    joined: tuple[frozenset[str], ...]


class PortGroups:
    """The port groups of the nodes of a model, looked up once for nodes of the same operator and ports."""

    def __init__(self, model: ir.Model, types: Types, target: Target, half: str) -> None:
        self._types, self._target, self._half = types, target, half
        self._layouts = Layouts(model)
        self._functions = frozenset(model.functions)
        self._version = element_types.versions(model.graph.opset_imports)
        self._layout = functools.cache(self._find_layout)
        self._support = functools.cache(self._find_support)

    def of(self, node: ir.Node) -> tuple[PortGroup, ...]:
        """Return the groups of a node; one of all ports, which allows no type, if its operator has no schema.

        Variables that the target's kernels treat as one form one group, under the name of the first.
        """
        inputs, outputs = len(node.inputs), len(node.outputs)
        if self._functions and node.op_identifier() in self._functions:
            return _opaque(inputs, outputs, FUNCTION)
        if declared := self._layouts.declared(node, self._types.get):
            return tuple(
                PortGroup(each.var, each.inputs, each.outputs, each.allowed, runs=True, typed=each.inputs)
                for each in declared
            )
        groups, shared_variables = self._layout(node.domain, node.op_type, inputs, outputs)
        for names in shared_variables:
            groups = self._join(node, groups, names)
        return groups

    def allowed(self, node: ir.Node) -> frozenset[str]:
        """Return all types that the schema of a node's operator names; none if it has no schema."""
        signature = schema.find(node.domain, node.op_type, self._version(node.domain))
        return frozenset[str]().union(*signature.allowed.values()) if signature else frozenset[str]()

    def runs(self, domain: str, operator: str, variable: str) -> bool:
        """Return whether the target has a half kernel for a type variable, as far as known."""
        support = self._support(domain, operator)
        return support is None or support.has(variable, self._half)

    def _find_layout(self, domain: str, operator: str, inputs: int, outputs: int) -> _Layout:
        layout = schema.layout(domain, operator, self._version(domain), inputs, outputs)
        if layout is None:
            return _Layout(_opaque(inputs, outputs), ())
        is_container = operator in element_types.CONTAINERS and not domain
        groups = tuple(
            PortGroup(
                var=group.var,
                inputs=group.inputs,
                outputs=group.outputs,
                allowed=group.allowed,
                runs=self.runs(domain, operator, group.var.name),
                typed=tuple(range(inputs)) if is_container else group.inputs,
            )
            for group in layout
        )
        return _Layout(groups, tuple(self._joined(domain, operator)))

    def _joined(self, domain: str, operator: str) -> Iterable[frozenset[str]]:
        return self._target.joined(domain, operator, self._support(domain, operator), self._half)

    def _find_support(self, domain: str, operator: str) -> Support | None:
        """Return the target's kernels for an operator; None if its schema alone counts."""
        signature = schema.find(domain, operator, self._version(domain))
        return signature and self._target.support(domain, operator, signature, self._half)

    def _join(
        self, node: ir.Node, groups: tuple[PortGroup, ...], names: Collection[str]
    ) -> tuple[PortGroup, ...]:
        """Return the groups, with those of these variables that are float32 merged into one."""
        parts = [group for group in groups if group.var.name in names and self._is_float32(node, group)]
        if len(parts) < 2:
            return groups
        one = parts[0]._replace(
            inputs=tuple(sorted(i for group in parts for i in group.inputs)),
            outputs=tuple(sorted(i for group in parts for i in group.outputs)),
            allowed=frozenset.intersection(*(group.allowed for group in parts)),
            typed=tuple(i for group in parts for i in group.typed),
        )
        return (one, *(group for group in groups if group not in parts))

    def _is_float32(self, node: ir.Node, group: PortGroup) -> bool:
        kinds = (self._types.get(value) for i in group.inputs if (value := node.inputs[i]) is not None)
        return all(kind is not None and kind.dtype is ir.DataType.FLOAT for kind in kinds)


@functools.cache
def _opaque(inputs: int, outputs: int, var: TypeVar = OPAQUE) -> tuple[PortGroup, ...]:
    ports = tuple(range(inputs)), tuple(range(outputs))
    return (PortGroup(var, *ports, allowed=frozenset(), runs=True, typed=()),)
