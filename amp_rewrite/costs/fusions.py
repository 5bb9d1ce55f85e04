"""Pairs of nodes that the runtime executes as one: the value between them is never written to memory.

They are the pairs that onnxruntime 1.31's CUDA provider fuses, in float32 and in half alike, as `amp-rewrite
placement` shows: a bias into MatMul (as Gemm) and Conv, a scale before or after a MatMul, a Transpose before
it, the sum before a LayerNormalization or a Softmax, and `x * Sigmoid(x)`. It fuses no activation into Conv
or Gemm, and no two elementwise operators.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.patterns import Pattern, either, fits, op, part, var
from amp_rewrite.onnx_types import schema
from amp_rewrite.preparing import operator_forms

# Nodes of a written-out norm that onnxruntime runs as one kernel, as its own passes match them.
#
#     d = x - mean(x)                                                   LayerNormalization, with a bias
#     Pow(d, 2), ReduceMean, Add, Sqrt, Div, Mul by a weight            SimplifiedLayerNormalization
#
# Both average over the last axis alone, and require a weight (and bias) of one axis. Casts before and within
# them go as well. Source: layer_norm_fusion.cc in onnxruntime/core/optimizer; seen with onnxruntime-gpu
# 1.31.1.


class FusedNorm(NamedTuple):
    """The fused nodes before the weight, and the bias after it where that belongs to the kernel."""

    inner: tuple[ir.Node, ...]
    bias: ir.Node | None


def _norm(data: Pattern) -> Pattern:
    square = op("ReduceMean", op("Pow", data), where=_averages_last)
    return operator_forms.quotient(data, operator_forms.root_of(square))


def _averages_last(mean: ir.Node) -> bool:
    axes, data = _axes(mean), mean.inputs[0]
    rank = len(data.shape) if data is not None and data.shape is not None else None
    return axes == (-1,) or (rank is not None and axes == (rank - 1,))


def _axes(mean: ir.Node) -> tuple[int, ...]:
    """Return the axes of a reduction; none where they are unknown, or all of them."""
    if "axes" in mean.attributes:
        return tuple(schema.integers(mean, "axes"))
    axes = stored_as(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return () if axes is None else tuple(map(int, axes.numpy().reshape(-1)))


def _is_vector(value: ir.Value | None) -> bool:
    """Return whether a value has one axis."""
    tensor = stored_as(value)
    shape = tensor.shape if tensor is not None else value.shape if value is not None else None
    return shape is not None and len(shape) == 1


def _weighted() -> Pattern:
    x = var("x")
    centred = part("centring", op("Sub", x, op("ReduceMean", x, where=_averages_last)))
    return op("Mul", either(_norm(centred), _norm(x)), fits(_is_vector))


_WEIGHTED = _weighted()
_PASSED = frozenset(("Cast", "Identity"))


def match_fused_norm(result: ir.Node, weight: ir.Node) -> FusedNorm | None:
    """Return the nodes that run as one with `weight`, which reads the `result` of a norm; else None."""
    match = patterns.match(_WEIGHTED, weight.outputs[0], _PASSED)
    if match is None or result not in match.nodes:
        return None
    bias, centring = _bias(weight), match.of("centring")
    if bias is None or not centring:
        return FusedNorm(match.but(weight, *centring), None)
    return FusedNorm(match.but(weight), bias)


def _bias(weight: ir.Node) -> ir.Node | None:
    """Return the addition of a bias of one axis, where it is the only consumer of the weighted value."""
    node = patterns.only_reader(weight.outputs[0])
    if node is None or not patterns.is_default(node, "Add"):
        return None
    return node if _is_vector(patterns.other(node, weight.outputs[0])) else None


# Written-out norms that run as one kernel, and their units without a launch of their own.


@dataclass(frozen=True, slots=True)
class FusedIdioms:
    """The units of written-out norms that the runtime fuses, with the Casts before and within them.

    `inside` are units in float32 before a weight: their inputs may be of either type, and their outputs are
    not written. `absorbed` are all units that launch no kernel of their own; the weight stands for them.
    """

    inside: frozenset[int]
    absorbed: frozenset[int]


def find_fused_idioms(graph: UnitGraph) -> FusedIdioms:
    """Return the norms of a model that have a weight and run as one kernel."""
    inside: set[ir.Node] = set()
    biases: set[ir.Node] = set()
    for result, idiom_part in graph.spelled.items():
        weight = _weight(graph, result) if idiom_part.part is Part.RESULT else None
        norm = (
            match_fused_norm(graph.units[result].node, graph.units[weight].node)
            if weight is not None
            else None
        )
        if norm is not None:
            inside.update(norm.inner)
            biases.update([norm.bias] if norm.bias is not None else [])
    within = (
        frozenset(unit.index for unit in graph.units if unit.node in inside) if inside else frozenset[int]()
    )
    behind = (unit.index for unit in graph.units if unit.node in biases) if biases else ()
    return FusedIdioms(within, within.union(behind))


def fused_pairs(graph: UnitGraph) -> Iterator[tuple[int, int]]:
    """Yield pairs of units of which the first may be half only where the second is: weights and data."""
    for alike in graph.alike:
        for weight in alike.weights:
            for other in (alike.producer, *alike.beside):
                if other is not None:
                    yield weight, other
            if alike.producer is not None:
                yield alike.producer, weight


def _weight(graph: UnitGraph, result: int) -> int | None:
    """Return the weight after a norm, which reads its result."""
    return next((unit for unit in graph.successors[result] if _is(graph, unit, Part.OUTER)), None)


def _is(graph: UnitGraph, unit: int, part: Part) -> bool:
    return unit in graph.spelled and graph.spelled[unit].part is part


class Fusion(NamedTuple):
    """A value between two nodes that run as one where both have one precision, and their units."""

    value: ir.Value
    producer: int
    consumer: int


def find_fusions(graph: UnitGraph, vary: set[ir.Value | None]) -> Iterator[Fusion]:
    """Yield the fused pairs of a model: the value has no other consumer, and is no output."""
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
    constant_side = _PAIRS.get((producer.op_type, consumer.op_type))
    if constant_side is None or consumer.domain:
        return False
    holders = {_Stored.NOWHERE: (), _Stored.ABOVE: (producer,), _Stored.BELOW: (consumer,)}[constant_side]
    return all(any(value not in vary for value in holder.inputs) for holder in holders)


class _Stored(enum.Enum):
    """Position of the node that reads the constant, a bias or a scale."""

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
