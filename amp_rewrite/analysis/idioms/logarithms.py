"""Logarithms of what saturates, which half flushes to zero although its logarithm is no large number.

    log(softmax(x))          LogSoftmax
    log(sigmoid(x))          a Softplus with two signs, as exporters write PyTorch's logsigmoid
    log(1 - sigmoid(x))      the same of -x
    log(1 - tanh(x)**2)      the density of a squashed action; a sum of such
    log((1 + erf(x)) / 2)    the probability that a normal number is below x
    log(sigmoid(x) * sigmoid(z))           two scores, as of a class and of an object
    log(sigmoid(x) - sigmoid(z))           the probability of a bin of a logistic distribution

A sigmoid of -18 is 1.5e-8 and its logarithm -18; half has 0 there, and -inf. What stands between may also
move elements, scale them, add a number, square, or bound them, and take two such together. All of it is
float32 up to the logarithm, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.idioms.softmax import LOGARITHM
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.entries import Operator

SOFTPLUS: Operator = ("", "Softplus")
_SPELL = {"Erf": SOFTPLUS, "Sigmoid": SOFTPLUS, "Softmax": LOGARITHM, "Tanh": SOFTPLUS}
_MOST = 6
"""The most nodes between the two, which none of these has more of."""
_MANY = 4096
"""The most ways to one logarithm: where nodes share what they read, there are more ways than nodes."""


def find(graph: UnitGraph, _: Half) -> Iterator[Idiom]:
    """The logarithms of sigmoids, softmaxes and tanhs in a model, whatever the half type."""
    for unit in dict.fromkeys(graph.by_operator.get("Log", ())):
        node = graph.units[unit].node
        ways = _ways(node.inputs[0], (node,)) if patterns.is_default(node, "Log") else ()
        for way in ways:
            if (data := way[0].inputs[0]) is not None:
                yield Idiom(_SPELL[way[0].op_type], data, way, node)


_Way = tuple[ir.Node, ...]


def _ways(value: ir.Value | None, behind: _Way) -> tuple[_Way, ...]:
    """The ways that lead to a value and on through these nodes, each from what saturates; none where one of
    them begins with anything else.
    """
    node = value.producer() if value is not None else None
    if node is None or node.graph is not behind[0].graph or len(behind) > _MOST + 1:
        return ()
    way = (node, *behind)
    if patterns.is_default(node, *_SPELL):
        return (way,)
    found: list[_Way] = []
    for before in dict.fromkeys(_passed(node)):
        ways = _ways(before, way)
        found += ways
        if not ways or len(found) > _MANY:
            return ()
    return tuple(found)


def _passed(node: ir.Node) -> Iterable[ir.Value]:
    """What a node moves, scales, bounds, squares, or takes together; none for another node."""
    if patterns.is_default(node, "Pow"):
        return patterns.operands(node)[:1] if patterns.scalar(node.inputs[1]) == 2 else ()
    if patterns.is_default(node, *_TOGETHER):
        return [value for value in patterns.operands(node) if patterns.scalar(value) is None]
    moved = patterns.moved_or_scaled(node, _MOVE, lambda value: patterns.scalar(value) is not None)
    return () if moved is None else (moved,)


_TOGETHER = ("Add", "Clip", "Max", "Min", "Mul", "Sub")
_MOVE = ("Gather", "GatherElements", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
