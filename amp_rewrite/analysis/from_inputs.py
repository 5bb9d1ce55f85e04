"""The units that compute from the inputs of a model and from stored tensors alone."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import onnx_ir as ir

from amp_rewrite.analysis.derived import Derived
from amp_rewrite.analysis.units import UnitGraph, value_of


class FromInputs:
    """The values of a model that are inputs without a default, cast from such (half, 16-bit audio), or made
    of them by units that `carries` takes.

    `stored` are the stored tensors. `units` are these units, each behind those that it reads from.
    """

    def __init__(self, graph: UnitGraph, stored: Container[ir.Value], carries: Callable[[int], bool]) -> None:
        self._graph = graph
        given = (value for value in graph.root.inputs if not value.is_initializer())
        self._inputs = dict.fromkeys(itself for value in given for itself in (value, *_cast(value)))
        self.units: dict[int, None] = {}
        derived = Derived(stored)
        todo = [unit for value in self._inputs for unit, _ in graph.uses.get(value, ())]
        while todo:
            unit = todo.pop()
            if unit in self.units or not carries(unit):
                continue
            if all(self.has(value) or derived.has(value) for value in read_by(graph, unit)):
                self.units[unit] = None
                todo.extend(graph.successors[unit])

    def has(self, value: ir.Value) -> bool:
        """Whether a value is an input, or made by one of the units."""
        return value in self._inputs or self._graph.producer.get(value) in self.units


_EXACT = (ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8)
"""Types of inputs of which half holds all, and float32, whose Casts lead to other types."""


def _cast(value: ir.Value) -> Iterator[ir.Value]:
    """What Casts make of an input of which half may not hold all."""
    if value.dtype not in _EXACT:
        yield from (node.outputs[0] for node, _ in value.uses() if node.op_type == "Cast")


def read_by(graph: UnitGraph, unit: int) -> Iterator[ir.Value]:
    """The values that a unit reads, optional ones that are left out apart."""
    return (value for use in graph.units[unit].uses if (value := value_of(use)) is not None)
