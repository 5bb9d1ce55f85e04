"""Swish with its sigmoid written out as well: data divided by 1 and an exponential of them.

    x / (1 + exp(-x))                  also of beta * x
    x * (1 / (1 + exp(-x)))            or its Reciprocal

An exponential that overflows makes the quotient 0: below -11.1, where that is in float16, 1.7e-4 is lost at
most, a third of half's unit roundoff. A sigmoid that is half is 0 below -17. The sigmoid alone is no such
idiom: what reads it may tell 1.5e-5 from 0, as a logarithm does.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.entries import Operator

SWISH: Operator = ("", "Swish")


def find(graph: UnitGraph, _: Half) -> Iterator[Idiom]:
    """The Swishes of a model that are written out down to the exponential, whatever the half type."""
    for unit in dict.fromkeys(graph.by_operator.get("Exp", ())):
        node = graph.units[unit].node
        idiom = _of(node) if patterns.is_default(node, "Exp") else None
        if idiom is not None:
            yield idiom


def _of(exponential: ir.Node) -> Idiom | None:
    argument = exponential.inputs[0]
    front = argument.producer() if argument is not None else None
    data = _scaled(front) if front is not None else None
    total = patterns.only_reader(exponential.outputs[0])
    if front is None or data is None or total is None or not _adds_one(total):
        return None
    behind = _gate(data, total.outputs[0])
    nodes = (front, exponential, total, *behind)
    return Idiom(SWISH, data, outer=nodes) if behind and patterns.are_closed(nodes, nodes[-1]) else None


def _scaled(node: ir.Node) -> ir.Value | None:
    """What a node multiplies by a number or gives another sign; None for any other node."""
    if patterns.is_default(node, "Neg"):
        return node.inputs[0]
    return _beside(node) if patterns.is_default(node, "Mul") else None


def _adds_one(node: ir.Node) -> bool:
    return patterns.is_default(node, "Add") and _beside(node, 1.0) is not None


def _beside(node: ir.Node, wanted: float | None = None) -> ir.Value | None:
    """The operand beside a stored number, or beside that one; None where there is no such number."""
    found = {value: patterns.scalar(value) for value in patterns.operands(node)}
    stored = [number for number in found.values() if number is not None]
    fits = len(stored) == 1 and len(found) > 1 and (wanted is None or stored == [wanted])
    return next(value for value, number in found.items() if number is None) if fits else None


def _gate(data: ir.Value, total: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes that divide the data by a total, or multiply them with its reciprocal; none for others."""
    node = patterns.only_reader(total)
    if node is None or not patterns.is_default(node, "Div", "Reciprocal"):
        return ()
    dividend, *divisor = (None, *node.inputs)[-2:]
    if divisor != [total]:
        return ()
    if dividend is data:
        return (node,)
    inverts = dividend is None or patterns.scalar(dividend) == 1
    last = patterns.only_reader(node.outputs[0]) if inverts else None
    is_gated = last is not None and patterns.is_default(last, "Mul")
    return (node, last) if last and is_gated and patterns.other(last, node.outputs[0]) is data else ()
