"""Written-out norms: data divided by a power mean, or by a power sum, of themselves.

    d = x - mean(x)                       LayerNormalization; d = x: RMSNormalization, LpNormalization
    s = sqrt(mean(d²) + epsilon)          or the sum, the largest of the two, and so on
    y = d / s                             or d * (1 / s), d * (...) ** -0.5; also weight * d / s
    z = y * weight + bias

From the reduction on every operator is homogeneous in d but for a bound from below, so that degrees show
what it comes to: 2 for a square, half of it behind a root, its negative behind a reciprocal. A quotient of
degree 0 is at most the square root of the number of elements, or 1 with a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.idioms import centring, patterns, power_means
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.entries import Operator

CENTRED: Operator = ("", "LayerNormalization")
MEAN: Operator = ("", "RMSNormalization")
SUM: Operator = ("", "LpNormalization")
_REDUCTIONS = {
    "ReduceMean": MEAN,
    "ReduceSum": SUM,
    "ReduceSumSquare": SUM,
    "ReduceL2": SUM,
    "Einsum": MEAN,
    "MatMul": MEAN,
}
"""What makes the power mean or sum: a product of data with themselves is one that is scaled behind it."""
_ONE_TYPE = 17
"""From this opset on LayerNormalization has one type for data and weights (onnxruntime fuses to it)."""


def find(graph: UnitGraph, half: Half) -> Iterator[Idiom]:
    """The written-out norms of a model."""
    opset = element_types.default_opset(graph.root.opset_imports)
    for operator, spelled in _REDUCTIONS.items():
        for unit in dict.fromkeys(graph.by_operator.get(operator, ())):
            node = graph.units[unit].node
            norm = _of(node) if not node.domain else None
            if norm is not None:
                yield norm.idiom(CENTRED if norm.centring else spelled, opset, half)


@dataclass(frozen=True, slots=True)
class _Norm:
    """The nodes that centre the data, those from the square to the last but one, and the quotient."""

    data: ir.Value
    centring: tuple[ir.Node, ...]
    statistics: tuple[ir.Node, ...]
    result: ir.Node

    @property
    def inner(self) -> tuple[ir.Node, ...]:
        return (*self.centring, *self.statistics, self.result)

    def idiom(self, operator: Operator, opset: int, half: Half) -> Idiom:
        outer = tuple(weights(self.result.outputs[0]))
        typed_as = self._typed_as(operator, outer, opset, half)
        return Idiom(operator, self.data, self.inner, self.result, outer, typed_as)

    def _typed_as(
        self, operator: Operator, outer: tuple[ir.Node, ...], opset: int, half: Half
    ) -> ir.Value | None:
        """The value whose type onnxruntime wants the weights to have, once it has fused them with the norm.

        A norm of one type takes the data for it. In bfloat16 it has no kernel of two types for any, and
        where it finds no LayerNormalization in a centred norm, what is centred is data of a simplified one.
        """
        weighted = any(node.op_type == "Mul" for node in outer)
        if not weighted or operator == SUM:
            return None
        if operator == CENTRED and half is not FLOAT16 and not _has_vectors(outer):
            return self.centring[-1].outputs[0]
        is_picky = half is not FLOAT16 or (operator == CENTRED and opset >= _ONE_TYPE)
        return self.data if is_picky else None


def _has_vectors(outer: tuple[ir.Node, ...]) -> bool:
    """Whether there are a weight and a bias of one axis, which the fusion to LayerNormalization asks for."""
    ranks = [[len(v.shape) for v in node.inputs if v is not None and v.shape is not None] for node in outer]
    return len(outer) == _WEIGHT_AND_BIAS and all(1 in found for found in ranks)


_WEIGHT_AND_BIAS = 2


def _of(reduction: ir.Node) -> _Norm | None:
    """The norm whose statistics begin with this reduction."""
    squared = power_means.squared(reduction)
    if squared is None:
        return None
    base, square, degree = squared
    core = centring.core_of(base)
    chain = power_means.chain_behind(reduction.outputs[0], degree, core.data)
    if chain is None:
        return None
    quotient, weight = _divided(chain.dividend)
    shared = centring.shared_data(quotient.data, core.data)
    is_centred = bool(core.centring) or chain.is_variance
    if shared is None or is_centred != bool(quotient.centring):
        return None
    centred = tuple(dict.fromkeys((*shared.shaping, *core.centring, *quotient.centring)))
    statistics = tuple(node for node in (*square, reduction, *chain.nodes, *weight) if node not in centred)
    norm = _Norm(shared.data, centred, statistics, chain.result)
    return norm if patterns.are_closed(norm.inner, chain.result) else None


def _divided(dividend: ir.Value) -> tuple[centring.Core, tuple[ir.Node, ...]]:
    """The core of what is divided, and the node that multiplies it with a weight before, if one does."""
    core, node = centring.core_of(dividend), dividend.producer()
    if core.centring or node is None or not patterns.is_default(node, "Mul") or len(node.inputs) != 2:
        return core, ()
    for data, weight in (node.inputs, reversed(node.inputs)):
        weighted = centring.core_of(data) if data is not None and patterns.is_parameter(weight) else core
        if weighted.centring:
            return weighted, (node,)
    return core, ()


def weights(value: ir.Value) -> Iterator[ir.Node]:
    """The multiplication by a weight and the addition of a bias behind a normalised value."""
    for operator in ("Mul", "Add"):
        node = patterns.only_reader(value)
        if node is None or not patterns.is_default(node, operator):
            continue
        if patterns.is_parameter(patterns.other(node, value)):
            yield node
            value = node.outputs[0]
