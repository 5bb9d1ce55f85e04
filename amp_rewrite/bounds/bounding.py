"""The bounds of values that hold for every input within its range: interval analysis of the float32 model."""

from __future__ import annotations

import math

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.bounds import given, transfer
from amp_rewrite.bounds.intervals import UNKNOWN, Interval, hull, rounded
from amp_rewrite.bounds.transfer import Operands, of_tensor, of_type
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.dataflow import Forward
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.operators.catalogue import MOVERS
from amp_rewrite.operators.record import Move, Trait
from amp_rewrite.policy.options import Options

_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The element types in whose arithmetic values are bounded; half rounds and overflows on its own."""


class Proven:
    """The intervals of all values, with masks clamped as in the rewrite; they follow from the `inputs`."""

    def __init__(self, model: ir.Model, facts: Facts, options: Options) -> None:
        self.inputs = given.ranges(model, options.ranges)
        settable = {value.name: value for value in given.settable(model)}
        self._given: dict[ir.Value | None, Interval] = {
            settable[each.name]: rounded(each.low, each.high) for each in self.inputs
        }
        self._given |= transfer.written_out(facts.graph)
        self._variable, self._calls = {*settable.values()}, frozenset(model.functions)
        self._masks, self._fill = facts.ranges.masks.clamped, options.half.fill
        self._dtype_of = facts.graph.dtype
        intervals = Forward(self._unknown, lambda each: hull(*each), self._transfer)
        self.of = intervals.of
        intervals.visit(model.graph)

    def _unknown(self, value: ir.Value | None) -> Interval:
        """Return the range of an input, the interval of a stored value, or the range of any other's type."""
        tensor = stored_as(value) if value not in self._variable else None
        if value is None or tensor is None or value in self._given:
            return self._given.get(value) or of_type(self._dtype_of(value))
        return self._clamped(value, of_tensor(tensor))

    def _transfer(self, node: ir.Node) -> list[Interval]:
        """Return the intervals of the outputs of a node that are bounded."""
        record, function = record_of(node), transfer.find(node)
        is_aligned = "broadcast" in node.attributes  # in old opsets, at other axes than from the last
        if function is None or is_aligned or node.op_identifier() in self._calls:
            return []
        try:
            bound = function(Operands(node, self.of, self._variable))
        except (ArithmeticError, IndexError, TypeError, ValueError):  # a node that no schema allows, NaN
            return []
        selects, states = record.move is Move.SELECTS, 2 if record.traits & Trait.RECURRENT else 1
        outputs = node.outputs if selects else node.outputs[:states]
        return [self._given.get(value) or self._in_its_type(node, value, bound) for value in outputs]

    def _in_its_type(self, node: ir.Node, value: ir.Value, bound: Interval) -> Interval:
        """Return the interval of a result: integers are truncated and wrap, others are rounded."""
        dtype = self._dtype_of(value)
        if dtype in _WIDE:
            return self._clamped(value, bound if node.op_type in MOVERS else bound.widened())
        limits = of_type(dtype)
        if limits is UNKNOWN:
            return bound if node.op_type in MOVERS else UNKNOWN
        fits = limits.low < bound.low and bound.high < limits.high
        return Interval(math.floor(bound.low), math.ceil(bound.high)) if fits else limits

    def _clamped(self, value: ir.Value, bound: Interval) -> Interval:
        most = self._fill if value in self._masks else math.inf
        return Interval(max(bound.low, -most), min(bound.high, most))


MOST_NODES = 5_000
MOST_WEIGHTS = 1 << 25
"""Model sizes up to which a summary has bounds by default: they take a tenth of a millisecond for each node,
and about a second for 2^26 weights.
"""


def is_quick(facts: Facts) -> bool:
    """Whether bounds of a model take little of the time of its rewrite."""
    nodes = sum(map(len, facts.graph.nodes.values()))
    return nodes <= MOST_NODES and sum(s.tensor.size for s in facts.constants.values()) <= MOST_WEIGHTS
