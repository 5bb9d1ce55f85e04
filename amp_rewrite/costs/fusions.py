"""Pairs of nodes that the runtime executes as one: the value between them is never written to memory.

They are what onnxruntime 1.31's CUDA provider fuses, in float32 and in half alike, as `amp-rewrite placement`
shows it: a bias into MatMul (as Gemm) and Conv, a scale before or behind a MatMul, a Transpose before it, the
sum before a LayerNormalization or a Softmax, and `x * Sigmoid(x)`. It fuses no activation into Conv or Gemm,
and no two elementwise operators.
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
from amp_rewrite.onnx_types import schema
from amp_rewrite.preparing import norms_and_clips

# Which nodes of a norm that is written out onnxruntime runs as one kernel, as its own passes match them.
#
#     d = x - mean(x)                                                   LayerNormalization, with a bias
#     Pow(d, 2), ReduceMean, Add, Sqrt, Div, Mul by a weight            SimplifiedLayerNormalization
#
# Both average over the last axis alone, and want a weight (and bias) of one axis. Casts before and within
# them go as well. Source: layer_norm_fusion.cc in onnxruntime/core/optimizer; seen with onnxruntime-gpu
# 1.31.1.


class FusedNorm(NamedTuple):
    """The nodes before the weight, and the bias behind it where that belongs to the kernel."""

    inner: tuple[ir.Node, ...]
    bias: ir.Node | None


def match_fused_norm(result: ir.Node, weight: ir.Node) -> FusedNorm | None:
    """The nodes that run as one with `weight`, which reads the `result` of a norm; None where none do."""
    found = _simplified(result) if patterns.is_default(weight, "Mul") else None
    if found is None or not _is_vector(patterns.other(weight, result.outputs[0])):
        return None
    *_, mean, square = found
    bias, centring = _bias(weight), _centring(square.inputs[0], _axes(mean))
    if bias is None or not centring:
        return FusedNorm(found, None)
    return FusedNorm((*found, *centring), bias)


def _simplified(result: ir.Node) -> tuple[ir.Node, ...] | None:
    """The nodes from the quotient back to the square of data that it divides."""
    quotient = _quotient(result)
    mean = norms_and_clips.mean_under_root(quotient.root) if quotient is not None else None
    square = patterns.maker(mean.inputs[0], "Pow") if mean is not None else None
    if quotient is None or mean is None or square is None or not _averages_last(mean):
        return None
    shifted = norms_and_clips.producer_of(quotient.root.inputs[0], "Add")
    if shifted is None or not _is_same(square.inputs[0], quotient.dividend):
        return None
    return (*quotient.nodes, quotient.root, shifted, mean, square)


class _Quotient(NamedTuple):
    """The nodes that divide, the root by which they do, and what they divide."""

    nodes: tuple[ir.Node, ...]
    root: ir.Node
    dividend: ir.Value | None


def _quotient(result: ir.Node) -> _Quotient | None:
    """The quotient by a root that a node makes, at once or as a product with the inverse."""
    root = _divisor(result)
    if root is not None:
        return _Quotient((result,), root, result.inputs[0])
    for value in result.inputs if patterns.is_default(result, "Mul") else ():
        inverse = patterns.maker(value, "Div")
        root = _divisor(inverse) if inverse is not None else None
        if inverse is not None and root is not None and patterns.scalar(inverse.inputs[0]) == 1:
            return _Quotient((result, inverse), root, patterns.other(result, inverse.outputs[0]))
    return None


def _divisor(node: ir.Node) -> ir.Node | None:
    return patterns.maker(node.inputs[1], "Sqrt") if patterns.is_default(node, "Div") else None


def _centring(data: ir.Value | None, axes: tuple[int, ...]) -> tuple[ir.Node, ...]:
    """The nodes that take the mean along these axes from data; two Subs may do the same."""
    taken = patterns.maker(data, "Sub")
    mean = patterns.maker(taken.inputs[1], "ReduceMean") if taken is not None else None
    if taken is None or mean is None or _axes(mean) != axes or mean.inputs[0] is not taken.inputs[0]:
        return ()
    return (mean, *(node for node in patterns.readers(mean.outputs[0]) if patterns.is_default(node, "Sub")))


def _bias(weight: ir.Node) -> ir.Node | None:
    """The addition of a bias of one axis, where it alone reads what is weighted."""
    node = patterns.only_reader(weight.outputs[0])
    if node is None or not patterns.is_default(node, "Add"):
        return None
    return node if _is_vector(patterns.other(node, weight.outputs[0])) else None


def _is_same(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Whether both are one value, or the same difference made twice."""
    one, other = patterns.maker(first, "Sub"), patterns.maker(second, "Sub")
    return first is second or (one is not None and other is not None and one.inputs == other.inputs)


def _averages_last(mean: ir.Node) -> bool:
    axes, data = _axes(mean), mean.inputs[0]
    rank = len(data.shape) if data is not None and data.shape is not None else None
    return axes == (-1,) or (rank is not None and axes == (rank - 1,))


def _axes(mean: ir.Node) -> tuple[int, ...]:
    """The axes of a reduction; none where they are not known, or all of them."""
    if "axes" in mean.attributes:
        return tuple(schema.integers(mean, "axes"))
    stored = stored_as(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return () if stored is None else tuple(map(int, stored.numpy().reshape(-1)))


def _is_vector(value: ir.Value | None) -> bool:
    """Whether a value has one axis."""
    stored = stored_as(value) if value is not None else None
    shape = stored.shape if stored is not None else value.shape if value is not None else None
    return shape is not None and len(shape) == 1


# Norms that are written out and run as one kernel: which units launch none of their own.


@dataclass(frozen=True, slots=True)
class FusedIdioms:
    """The units of written-out norms, as the runtime fuses them, with the Casts in front of and within them.

    `inside` are units in float32 before a weight: what they read may be of either type, and what they make
    is not written. `absorbed` are all units that launch no kernel of their own; the weight stands for them.
    """

    inside: frozenset[int]
    absorbed: frozenset[int]


def find_fused_idioms(graph: UnitGraph) -> FusedIdioms:
    """The norms of a model that have a weight and run as one kernel."""
    inside: set[ir.Node] = set()
    biases: set[ir.Node] = set()
    for result, spelled in graph.spelled.items():
        weight = _weight(graph, result) if spelled.part is Part.RESULT else None
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
    """Pairs of units of which the first may be half only where the second is: weights and data."""
    for alike in graph.alike:
        for weight in alike.weights:
            for other in (alike.producer, *alike.beside):
                if other is not None:
                    yield weight, other
            if alike.producer is not None:
                yield alike.producer, weight


def _weight(graph: UnitGraph, result: int) -> int | None:
    """The weight behind a norm, which reads its result."""
    return next((unit for unit in graph.successors[result] if _is(graph, unit, Part.OUTER)), None)


def _is(graph: UnitGraph, unit: int, part: Part) -> bool:
    return unit in graph.spelled and graph.spelled[unit].part is part


class Fusion(NamedTuple):
    """A value between two nodes that run as one where both have one precision, and their units."""

    value: ir.Value
    producer: int
    consumer: int


def find_fusions(graph: UnitGraph, vary: set[ir.Value | None]) -> Iterator[Fusion]:
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
