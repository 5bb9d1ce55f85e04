"""Logarithms of what saturates, which half flushes to zero although its logarithm is no large number.

    log(softmax(x))          LogSoftmax
    log(sigmoid(x))          a Softplus with two signs, as exporters write PyTorch's logsigmoid
    log(1 - sigmoid(x))      the same of -x
    log(1 - tanh(x)**2)      the density of a squashed action; a sum of such
    log((1 + erf(x)) / 2)    the probability that a normal number is below x

A sigmoid of -18 is 1.5e-8 and its logarithm -18; half has 0 there, and -inf. What stands between may also
move elements, scale them, add a number, square, or bound them. All of it is float32 up to the logarithm, and
no more.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def find(graph: UnitGraph, _: Half) -> Iterator[Idiom]:
    """The logarithms of sigmoids, softmaxes and tanhs in a model, whatever the half type."""
    for unit in dict.fromkeys(graph.by_operator.get("Log", ())):
        idiom = _of(graph.units[unit].node)
        if idiom is not None:
            yield idiom


def _of(logarithm: ir.Node) -> Idiom | None:
    nodes = [logarithm]
    value = logarithm.inputs[0] if patterns.is_default(logarithm, "Log") else None
    while value is not None and len(nodes) <= _MOST + 1:
        node = value.producer()
        if node is None or node.graph is not logarithm.graph:
            return None
        nodes.append(node)
        if patterns.is_default(node, *_SPELL):
            data = node.inputs[0]
            return None if data is None else Idiom(_SPELL[node.op_type], data, (*reversed(nodes),), logarithm)
        value = _passed(node)
    return None


def _passed(node: ir.Node) -> ir.Value | None:
    """What a node moves, scales, bounds, squares, or adds a number to or takes from one; None for another."""
    if _is_square(node):
        return node.inputs[0]
    if patterns.is_default(node, *_ADD):
        computed = [value for value in patterns.operands(node) if patterns.scalar(value) is None]
        return computed[0] if len(computed) == 1 else None
    return patterns.moved_or_scaled(node, _MOVE, lambda value: patterns.scalar(value) is not None)


def _is_square(node: ir.Node) -> bool:
    if patterns.is_default(node, "Mul"):
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    return patterns.is_default(node, "Pow") and patterns.scalar(node.inputs[1]) == 2


_ADD = ("Add", "Clip", "Max", "Min", "Sub")
_MOVE = ("Gather", "GatherElements", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
