"""Which ports of a node could be half at an opset, by schema, kernels and the shipped list: before anything is
decided, and for any number of nodes of a kind at once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.onnx_types import attribute_types, schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.options import SHIPPED_FOR


class Call(NamedTuple):
    """What kernels go by: an operator of the default domain, and how many ports a node has."""

    operator: str
    inputs: int
    outputs: int


def call(node: ir.Node) -> Call:
    """The call that a node is."""
    return Call(node.op_type, len(node.inputs), len(node.outputs))


Ports = frozenset[int]
"""Ports of a node: inputs from 0 up, outputs from -1 down."""


class HalfPorts:
    """What can be half, for a half type and a target."""

    def __init__(self, form: Form) -> None:
        self._half, self._target = form.half, form.target
        self._kinds = _kinds(form.half.name)
        self.of = functools.cache(self._of)

    def starts(self, operator: str) -> bool:
        """Whether an operator is on the list `allow`: without one of these nothing becomes half."""
        return self._kinds.get(operator) is Kind.ALLOW

    def _of(self, call: Call, version: int) -> Ports:
        """The ports that can be half at an opset; none of an operator that the shipped list keeps float32."""
        signature = schema.find("", call.operator, version)
        layout = schema.layout("", call.operator, version, call.inputs, call.outputs)
        if signature is None or layout is None or call.operator not in self._kinds:
            return frozenset()
        if version < attribute_types.first_opset_with(self._half):
            return frozenset()
        support = self._target.support("", call.operator, signature, self._half.name)
        groups = (
            group
            for group in layout
            if self._half.tensor in group.allowed
            and (support is None or support.has(group.var.name, self._half.name))
        )
        return frozenset(p for group in groups for p in (*group.inputs, *(~i for i in group.outputs)))


@functools.cache
def _kinds(half: str) -> dict[str, Kind]:
    lists = operator_lists.load(SHIPPED_FOR[half])
    can = (Kind.ALLOW, Kind.INFER, Kind.CLEAR)
    return {name: e.kind for (domain, name), e in lists.entries.items() if domain == "" and e.kind in can}


def has_float32(node: ir.Node, ports: Iterable[int], types: Types) -> bool:
    """Whether any of these ports of a node is float32."""
    values = (node.inputs[port] if port >= 0 else node.outputs[~port] for port in ports)
    return any(value is not None and types.get(value) == _FLOAT32 for value in values)


_FLOAT32 = ir.TensorType(ir.DataType.FLOAT)
