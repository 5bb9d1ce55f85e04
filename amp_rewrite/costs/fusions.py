"""Pairs of nodes that the runtime executes as one: the value between them is never written to memory.

They are what onnxruntime 1.31's CUDA provider fuses, in float32 and in half alike, as `amp-rewrite placement`
shows it: a bias into MatMul (as Gemm) and Conv, a scale before or behind a MatMul, a Transpose before it, the
sum before a LayerNormalization or a Softmax, and `x * Sigmoid(x)`. It fuses no activation into Conv or Gemm,
and no two elementwise operators.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph


class Fusion(NamedTuple):
    """A value between two nodes that run as one where both have one precision, and their units."""

    value: ir.Value
    producer: int
    consumer: int


def find(graph: UnitGraph, vary: set[ir.Value | None]) -> Iterator[Fusion]:
    """The pairs of a model that are fused: the value has no other reader, and is no output."""
    leaving = frozenset(graph.root.outputs)
    for unit in graph.units:
        if unit.node.op_type in _PRODUCERS and not unit.node.domain and len(unit.defs) == 1:
            value = unit.defs[0]
            readers = graph.uses.get(value, ())
            if len(readers) == 1 and value in vary and value not in leaving:
                reader = readers[0][0]
                if _is_fused(unit.node, graph.units[reader].node, vary):
                    yield Fusion(value, unit.index, reader)


def _is_fused(producer: ir.Node, consumer: ir.Node, vary: set[ir.Value | None]) -> bool:
    stored = _PAIRS.get((producer.op_type, consumer.op_type))
    if stored is None or consumer.domain:
        return False
    holders = {_Stored.NOWHERE: (), _Stored.ABOVE: (producer,), _Stored.BELOW: (consumer,)}[stored]
    return all(any(value not in vary for value in holder.inputs) for holder in holders)


class _Stored(enum.Enum):
    """Which of the two nodes reads a stored value: a bias or a scale."""

    NOWHERE = "nowhere"
    ABOVE = "above"
    BELOW = "below"


_PAIRS = {
    ("MatMul", "Add"): _Stored.BELOW,
    ("MatMul", "Mul"): _Stored.BELOW,
    ("MatMul", "Div"): _Stored.BELOW,
    ("Conv", "Add"): _Stored.BELOW,
    ("Conv", "Mul"): _Stored.BELOW,
    ("Mul", "MatMul"): _Stored.ABOVE,
    ("Div", "MatMul"): _Stored.ABOVE,
    ("Transpose", "MatMul"): _Stored.NOWHERE,
    ("Add", "LayerNormalization"): _Stored.NOWHERE,
    ("Add", "Softmax"): _Stored.NOWHERE,
    ("Sigmoid", "Mul"): _Stored.NOWHERE,
}
_PRODUCERS = frozenset(producer for producer, _ in _PAIRS)
