"""The node inputs that a value reaches, directly or through operators that only move or cast it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import patterns
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.operators.record import FIRST, Holds, Operator, Role

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeInput:
    """An input of a node, by position."""

    node: ir.Node
    index: int

    @property
    def operator(self) -> str:
        """The operator in the form of operator lists: `Add`, or `com.microsoft:BiasGelu`."""
        return schema.written(self.node.domain, self.node.op_type)

    @property
    def key(self) -> tuple[str, int]:
        """Operator and index."""
        return self.operator, self.index

    @property
    def record(self) -> Operator:
        """What is known of the operator."""
        return record_of(self.node)

    @property
    def role(self) -> Role | None:
        """What the input is to the operator."""
        return self.record.roles.get(self.index)

    def attribute(self, name: str, default: int = 0) -> int:
        """Return the integer attribute `name`, or `default` if it is not set."""
        return self.node.attributes.get_int(name, default)

    def input_at(self, index: int) -> ir.Value | None:
        """Return the node's input at `index`; None if absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def stored_shape(self, index: int) -> Shape:
        """Return the shape of the constant input at `index`; empty if it is no constant."""
        tensor = stored_as(self.input_at(index))
        return () if tensor is None else tuple(tensor.shape.numpy())

    def axis_of(self, value: ir.Value, axis: int) -> int | None:
        """Return the axis of this input for an axis of a value read directly, cast or transposed; None for
        any other path.
        """
        source = self.input_at(self.index)
        producer = None if source is None else source.producer()
        if source is value:
            return axis
        if producer is None or producer.inputs[:1] != (value,):
            return None
        order = list(producer.attributes.get_ints("perm", ()))
        if producer.op_type == "Transpose" and axis in order:
            return order.index(axis)
        return axis if producer.op_type == "Cast" else None


class Consumers:
    """The dataflow from values to node inputs in a graph and its subgraphs."""

    def __init__(self, graph: ir.Graph) -> None:
        self._leaving: dict[ir.Value, list[ir.Value]] = {}
        for node in every_node(graph):
            for binding in control_flow.bindings(node) or ():
                for body, index in binding.leaves:
                    outer = (node.outputs[i] for i in binding.outputs)
                    self._leaving.setdefault(body.outputs[index], []).extend(outer)

    def of(self, value: ir.Value) -> tuple[NodeInput, ...]:
        """Return the node inputs that the value reaches, directly or moved and cast; nearest first."""
        uses: dict[NodeInput, None] = {}
        queue, visited = [value], {value}
        while queue:
            current = queue.pop(0)
            direct = [NodeInput(node, index) for node, index in current.uses()]
            uses.update(dict.fromkeys(direct))
            following = (*self._leaving.get(current, ()), *(v for use in direct for v in _carried_to(use)))
            queue += [v for v in dict.fromkeys(following) if v not in visited]
            visited.update(following)
        return tuple(uses)


def _carried_to(use: NodeInput) -> Iterable[ir.Value]:
    """Yield the outputs that carry the elements of this node input."""
    bindings = control_flow.bindings(use.node)
    if bindings is not None:
        entered = (binding.enters for binding in bindings if use.index in binding.inputs)
        return [body.inputs[i] for enters in entered for body, i in enters]
    record = use.record
    converts = use.operator in ("CastLike", "DequantizeLinear") or record.holds in (
        Holds.OPTIONAL,
        Holds.CONTENT,
    )
    return use.node.outputs if use.index in (FIRST if converts else record.carries) else ()


# The value of a mask that keeps everything: exporters mean either by 1.

_HUGE = -1e3
"""From here on a negative number masks: exporters write -1e4, -1e9, the lowest float32 or minus infinity."""


def kept(mask: ir.Value, consumers: Consumers) -> int:
    """Return 0 for a mask whose ones lead to a huge negative number, else 1."""
    todo = [(mask, 1)]
    for value, turned in todo:  # what 1 has become there
        for use in consumers.of(value):
            operands, output = list(use.node.inputs), use.node.outputs[0]
            if use.key == ("Where", 0) and any(map(_is_huge, operands[1:])):
                return turned if _is_huge(operands[2]) else 1 - turned
            if use.operator == "Mul" and any(map(_is_huge, operands)):
                return 1 - turned
            is_compared = use.operator == "Equal" and any(patterns.scalar(each) == 0 for each in operands)
            if use.operator == "Not" or is_compared or use.key == ("Sub", 1):
                todo.append((output, 1 - turned))
            elif use.operator in ("And", "Or"):
                todo.append((output, turned))
    return 1


def _is_huge(value: ir.Value | None) -> bool:
    constant = None if value is None else stored_as(patterns.source(value))
    return constant is not None and constant.size > 0 and bool(np.all(constant.numpy() <= _HUGE))
