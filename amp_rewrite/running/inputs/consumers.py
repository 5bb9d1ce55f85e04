"""The node inputs that a value reaches, directly or through operators that only move or cast it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.operators import MOVERS
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.running.inputs.recurrent_states import stored_batch

_ALL_INPUTS = ("Concat", "Max", "Min", "SequenceConstruct")
_INPUTS = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2), "SequenceInsert": (0, 1)}
_CARRIERS = MOVERS | frozenset("Cast CastLike Clip DequantizeLinear Optional OptionalGetElement".split())
"""Operators whose outputs are the elements of an input, moved or in another type; of the first input unless
the tables above have others.
"""


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
        """Operator and index: the key in tables of node inputs."""
        return self.operator, self.index

    def attribute(self, name: str, default: int = 0) -> int:
        """The node's integer attribute `name`; `default` if it is not set."""
        return self.node.attributes.get_int(name, default)

    def reads(self, value: ir.Value) -> bool:
        """Whether it reads the value itself, or a Cast of it: with the same axes."""
        read = self.input_at(self.index)
        maker = None if read is None else read.producer()
        return read is value or (maker is not None and maker.op_type == "Cast" and maker.inputs[0] is value)

    def input_at(self, index: int) -> ir.Value | None:
        """The node's input at `index`; None if it has none there."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None


class Consumers:
    """The dataflow from values to node inputs in a graph and its subgraphs.

    `batch` is the size that stored states of recurrent layers require of a batch; None without such.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._leaving: dict[ir.Value, list[ir.Value]] = {}
        self.batch: int | None = None
        for node in every_node(graph):
            self._add_bindings(node)
            self.batch = self.batch or stored_batch(node)

    def of(self, value: ir.Value) -> tuple[NodeInput, ...]:
        """The node inputs that the value reaches, directly or moved and cast; nearest first."""
        found: dict[NodeInput, None] = {}
        todo, seen = [value], {value}
        while todo:
            current = todo.pop(0)
            uses = [NodeInput(node, index) for node, index in current.uses()]
            found.update(dict.fromkeys(uses))
            following = (*self._leaving.get(current, ()), *(v for use in uses for v in _carried_to(use)))
            todo += [v for v in dict.fromkeys(following) if v not in seen]
            seen.update(following)
        return tuple(found)

    def _add_bindings(self, node: ir.Node) -> None:
        for binding in control_flow.bindings(node) or ():
            for body, index in binding.leaves:
                outer = (node.outputs[i] for i in binding.outputs)
                self._leaving.setdefault(body.outputs[index], []).extend(outer)


def _carried_to(use: NodeInput) -> Iterable[ir.Value]:
    """The values that have the elements of what this node input reads."""
    bindings = control_flow.bindings(use.node)
    if bindings is not None:
        entered = (binding.enters for binding in bindings if use.index in binding.inputs)
        return [body.inputs[i] for enters in entered for body, i in enters]
    operator = use.operator
    carries = operator in _ALL_INPUTS or use.index in _INPUTS.get(operator, (0,))
    return use.node.outputs if operator in _CARRIERS and carries else ()
