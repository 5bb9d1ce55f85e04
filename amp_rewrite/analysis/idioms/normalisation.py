"""Written-out norms: data divided by a power mean, or by a power sum, of themselves.

    d = x - mean(x)                       LayerNormalization; d = x: RMSNormalization, LpNormalization
    s = sqrt(mean(d²) + epsilon)          or the sum, the largest of the two, and so on
    y = d / s                             or d * (1 / s), d * (...) ** -0.5
    z = y * weight + bias

From the reduction on every operator is homogeneous in d but for a bound from below, so that degrees show
what it comes to: 2 for a square, half of it behind a root, its negative behind a reciprocal. A quotient of
degree 0 is at most the square root of the number of elements, or 1 with a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.entries import Operator

CENTRED: Operator = ("", "LayerNormalization")
MEAN: Operator = ("", "RMSNormalization")
SUM: Operator = ("", "LpNormalization")
_REDUCTIONS = {"ReduceMean": MEAN, "ReduceSum": SUM, "ReduceSumSquare": SUM, "ReduceL2": SUM}
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
        outer = tuple(_weights(self.result.outputs[0]))
        weighted = any(node.op_type == "Mul" for node in outer)
        picky = half is not FLOAT16 or (operator == CENTRED and opset >= _ONE_TYPE)
        alike = weighted and operator != SUM and picky
        return Idiom(operator, self.data, self.inner, self.result, outer, fused_if_alike=alike)


def _of(reduction: ir.Node) -> _Norm | None:
    """The norm whose statistics begin with this reduction."""
    squared = _squared(reduction)
    if squared is None:
        return None
    base, square, degree = squared
    core = _core(base)
    chain = _chain(reduction.outputs[0], degree, core.data)
    if chain is None:
        return None
    quotient = _core(chain.dividend)
    is_centred = bool(core.centring) or chain.is_variance
    if not _are_same(quotient.data, core.data) or is_centred != bool(quotient.centring):
        return None
    centring = tuple(dict.fromkeys((*core.centring, *quotient.centring)))
    statistics = tuple(node for node in (*square, reduction, *chain.nodes) if node not in centring)
    norm = _Norm(core.data, centring, statistics, chain.result)
    return norm if patterns.are_closed(norm.inner, chain.result) else None


def _squared(reduction: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...], float] | None:
    """What is squared and reduced, the node that squares it, and the degree of the outcome."""
    value = reduction.inputs[0]
    if value is None:
        return None
    if reduction.op_type in _DEGREES:
        return value, (), _DEGREES[reduction.op_type]
    node = value.producer()
    base = _square_of(node) if node is not None else None
    return (base, (node,), 2.0) if node is not None and base is not None else None


_DEGREES = {"ReduceSumSquare": 2.0, "ReduceL2": 1.0}


def _square_of(node: ir.Node) -> ir.Value | None:
    """What a node squares; None for a node that does not."""
    if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    first, second = node.inputs[0], node.inputs[1]
    if patterns.is_default(node, "Pow"):
        return first if patterns.scalar(second) == 2 else None
    same = patterns.is_default(node, "Mul") and patterns.origin(first) is patterns.origin(second)
    return first if same else None


class _Core(NamedTuple):
    """Data, and the nodes that take their mean from them (none where nothing is taken)."""

    data: ir.Value
    centring: tuple[ir.Node, ...] = ()


def _core(value: ir.Value) -> _Core:
    node = value.producer()
    if node is None or not patterns.is_default(node, "Sub") or len(node.inputs) != 2:
        return _Core(value)
    data, mean = node.inputs[0], _mean_of(node.inputs[1])
    is_own = data is not None and mean is not None and _are_same(mean.inputs[0], data)
    return _Core(data, (mean, node)) if is_own and data is not None and mean is not None else _Core(value)


def _mean_of(value: ir.Value | None) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and patterns.is_default(node, "ReduceMean") else None


def _are_same(value: ir.Value | None, data: ir.Value) -> bool:
    return value is not None and patterns.origin(value) is patterns.origin(data)


@dataclass(frozen=True, slots=True)
class _Chain:
    """What follows a reduction: the nodes up to the quotient, the quotient, and what is divided."""

    nodes: tuple[ir.Node, ...]
    result: ir.Node
    dividend: ir.Value
    is_variance: bool


def _chain(value: ir.Value, degree: float, data: ir.Value) -> _Chain | None:
    nodes: list[ir.Node] = []
    is_variance = False
    while (node := patterns.only_reader(value)) is not None and not node.domain:
        dividend = _dividend(node, value, degree)
        if dividend is not None:
            return _Chain(tuple(nodes), node, dividend, is_variance)
        taken = _squared_mean(node, value, data)
        after = degree if taken else _after(node, value, degree)
        if after is None:
            return None
        nodes += (*taken, node)
        is_variance = is_variance or bool(taken)
        value, degree = node.outputs[0], after
    return None


def _dividend(node: ir.Node, value: ir.Value, degree: float) -> ir.Value | None:
    """What the chain divides, at a node that is homogeneous of degree 0; None at any other."""
    given = patterns.other(node, value)
    if given is None or given is value or patterns.scalar(given) is not None:
        return None
    divides = node.op_type == "Div" and node.inputs[1] is value and degree == 1
    return given if divides or (node.op_type == "Mul" and degree == -1) else None


def _squared_mean(node: ir.Node, value: ir.Value, data: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes that square the mean of the data, where `node` takes that from the mean of squares."""
    if node.op_type != "Sub" or len(node.inputs) != 2 or node.inputs[0] is not value:
        return ()
    square = node.inputs[1].producer() if node.inputs[1] is not None else None
    mean = _mean_of(_square_of(square)) if square is not None else None
    own = mean is not None and _are_same(mean.inputs[0], data)
    return (mean, square) if own and mean is not None and square is not None else ()


def _after(node: ir.Node, value: ir.Value, degree: float) -> float | None:
    """The degree behind a node of the chain; None for a node that does not belong to one."""
    step = _STEPS.get(node.op_type)
    return step(node, value, degree) if step is not None else None


_Step = Callable[[ir.Node, ir.Value, float], "float | None"]


def _bounded(node: ir.Node, value: ir.Value, degree: float) -> float | None:
    """With numbers added, or as bounds."""
    others = [given for given in node.inputs if given is not None and given is not value]
    return degree if all(patterns.scalar(given) is not None for given in others) else None


def _scaled(node: ir.Node, value: ir.Value, degree: float) -> float | None:
    return degree if patterns.scalar(patterns.other(node, value)) is not None else None


def _moved(node: ir.Node, value: ir.Value, degree: float) -> float | None:
    return degree if node.inputs[0] is value else None


def _divided(node: ir.Node, value: ir.Value, degree: float) -> float | None:
    if _scaled(node, value, degree) is None:
        return None
    return degree if node.inputs[0] is value else -degree


def _to_the_power(node: ir.Node, value: ir.Value, degree: float) -> float | None:
    exponent = patterns.scalar(patterns.other(node, value)) if node.inputs[0] is value else None
    return degree * exponent if exponent is not None else None


_STEPS: Mapping[str, _Step] = {
    **dict.fromkeys(("Add", "Clip", "Max", "Sum"), _bounded),
    **dict.fromkeys(("Expand", "Identity", "Unsqueeze"), _moved),
    "Div": _divided,
    "Mul": _scaled,
    "Pow": _to_the_power,
    "Reciprocal": lambda _node, _value, degree: -degree,
    "Sqrt": lambda _node, _value, degree: degree / 2,
}


def _weights(value: ir.Value) -> Iterator[ir.Node]:
    """The multiplication by a weight and the addition of a bias behind a normalised value."""
    for operator in ("Mul", "Add"):
        node = patterns.only_reader(value)
        if node is None or not patterns.is_default(node, operator):
            continue
        if patterns.is_parameter(patterns.other(node, value)):
            yield node
            value = node.outputs[0]
