"""Where a value goes: the ports that read it, also behind operators that only move or cast it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.operators import MOVERS
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import control_flow, schema

_EVERY = ("Concat", "Max", "Min", "SequenceConstruct")
_PORTS = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2), "SequenceInsert": (0, 1)}
_CARRIERS = MOVERS | frozenset("Cast CastLike Clip DequantizeLinear Optional OptionalGetElement".split())
"""What these make of a value is that value, its elements in other places or in another type."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input of a node: the `index`-th."""

    node: ir.Node
    index: int

    @property
    def operator(self) -> str:
        """The operator as lists write it: `Add`, or `com.microsoft:BiasGelu`."""
        return schema.written(self.node.domain, self.node.op_type)

    @property
    def place(self) -> tuple[str, int]:
        """The operator and the index: what tables of ports know it by."""
        return self.operator, self.index

    def other(self, index: int) -> ir.Value | None:
        """What the node reads at `index`; None where it reads nothing."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None


class Destinations:
    """The way of values through a graph and the graphs below it."""

    def __init__(self, graph: ir.Graph) -> None:
        self._leaving: dict[ir.Value, list[ir.Value]] = {}
        for inner in graphs(graph):
            for node in inner:
                self._note_bindings(node)

    def of(self, value: ir.Value) -> tuple[Port, ...]:
        """The ports that read the value, or what movement and casts make of it; nearest first."""
        found: dict[Port, None] = {}
        todo, seen = [value], {value}
        while todo:
            current = todo.pop(0)
            ports = [Port(node, index) for node, index in current.uses()]
            found.update(dict.fromkeys(ports))
            beyond = (*self._leaving.get(current, ()), *(v for port in ports for v in _beyond(port)))
            todo += [v for v in dict.fromkeys(beyond) if v not in seen]
            seen.update(beyond)
        return tuple(found)

    def _note_bindings(self, node: ir.Node) -> None:
        for binding in control_flow.bindings(node) or ():
            for body, index in binding.leaves:
                outer = (node.outputs[i] for i in binding.outputs)
                self._leaving.setdefault(body.outputs[index], []).extend(outer)


def _beyond(port: Port) -> Iterable[ir.Value]:
    bindings = control_flow.bindings(port.node)
    if bindings is not None:
        return _entered(bindings, port.index)
    return port.node.outputs if _carries(port) else ()


def _entered(bindings: Iterable[control_flow.Binding], index: int) -> Iterator[ir.Value]:
    for binding in bindings:
        if index in binding.inputs:
            yield from (body.inputs[i] for body, i in binding.enters)


def _carries(port: Port) -> bool:
    operator = port.operator
    if operator not in _CARRIERS:
        return False
    return operator in _EVERY or port.index in _PORTS.get(operator, (0,))
