"""What a loop carries from step to step, and what each unit of a step computes from.

Sets of carried values are the bits of a number: a search for each value takes quadratic time where a loop
carries thousands.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.onnx_types.control_flow import bindings


class CarriedValues:
    """The values that a Loop or Scan carries: `ends` has what each of them is at the end of a step."""

    def __init__(self, graph: UnitGraph, loop: ir.Node) -> None:
        carried = [one for one in bindings(loop) or () if len(one.enters) == len(one.leaves) == 1]
        ends = (one.enters + one.leaves for one in carried)
        self.ends = {body.inputs[entered]: body.outputs[left] for (body, entered), (_, left) in ends}
        self._producer = graph.producer
        self._bits = {value: 1 << at for at, value in enumerate(self.ends)}
        self._read = _spread(graph, loop, self._bits)

    def before(self, value: ir.Value) -> int:
        """The carried values that a value is computed from in the same step, or is itself, as bits."""
        return self._bits.get(value, 0) or self._read.get(self._producer.get(value, -1), 0)


def _spread(graph: UnitGraph, loop: ir.Node, bits: Mapping[ir.Value, int]) -> Mapping[int, int]:
    """The bits that reach each unit without passing through the loop, whose units end a step."""
    found = dict[int, int]()
    given = ((unit, bit) for value, bit in bits.items() for unit, _ in graph.uses.get(value, ()))
    for unit, bit in given:
        found[unit] = found.get(unit, 0) | bit
    todo, waiting = sorted(found), set(found)
    while todo:
        unit = heapq.heappop(todo)  # the first in order: most units are then met once
        waiting.remove(unit)
        for other in graph.successors[unit] if graph.units[unit].node is not loop else ():
            known = found.get(other, 0)
            found[other] = known | found[unit]
            if found[other] != known and other not in waiting:
                waiting.add(other)
                heapq.heappush(todo, other)
    return found
