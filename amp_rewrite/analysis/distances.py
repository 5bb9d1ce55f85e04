"""Squared distances |a|^2 + |b|^2 - 2ab, where what is left is much less than what is taken from each other.

    Add(Sub(ReduceSum(a * a), Mul(MatMul(a, b), 2)), ...)             vector quantisers, nearest neighbours
    MatMul(Concat(-2 * a, ReduceSum(a * a), 1), Concat(b, 1, ...))    PyTorch's cdist, as exporters write it

Where |a| is 64, half has steps of 2 or 4 for each of them: no points are closer to each other than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns, power_means
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_PRODUCTS = ("Einsum", "Gemm", "MatMul")
_MOVE = ("Cast", "Expand", "Identity", "Neg", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_ADD = ("Add", "Sub", "Sum")
_SQUARES = ("Einsum", "MatMul", "ReduceSum", "ReduceSumSquare")
_DEPTH = 6
"""The most nodes that move or scale a vector before it is multiplied or squared."""
_MOST = 32
"""The most nodes that are looked at on the way from squares to a sum, and from there to a product."""


def check(graph: UnitGraph) -> Mapping[int, Evidence]:
    """The units of products that make a distance with the squares of what they multiply, up to the sum."""
    reductions = (graph.units[u].node for name in _SQUARES for u in graph.by_operator.get(name, ()))
    held = {node for reduction in reductions for node in _distance(reduction)}
    evidence = Evidence(Authority.RANGE, Reason.DISTANCE)
    return dict.fromkeys(graph.of_nodes(held), evidence)


def _distance(reduction: ir.Node) -> Iterator[ir.Node]:
    """The products that make distances with these squares, and the nodes up to the sums with them."""
    squared = power_means.squared(reduction) if patterns.is_default(reduction, *_SQUARES) else None
    if squared is None:
        return
    vector = _vector(squared[0])
    behind = _reach([reduction], lambda node: _onwards(node, vector))
    yield from (node for node in behind if patterns.is_default(node, *_PRODUCTS))
    sums = [node for node in behind if patterns.is_default(node, *_ADD)]
    before = _reach(sums, _backwards)
    for node in before:
        if patterns.is_default(node, *_PRODUCTS) and vector in map(_vector, patterns.operands(node)):
            yield from _way(node, before)


def _onwards(node: ir.Node, vector: ir.Value) -> Iterator[ir.Node]:
    """What moves, scales or adds to the result of a node, or has it beside the vector in a factor."""
    moved = _vector(node.outputs[0]).producer()
    is_factor = moved is not None and _is_beside(moved, vector)
    for reader in patterns.readers(node.outputs[0]):
        known = _scaled(reader) is node.outputs[0] or _is_beside(reader, vector)
        if known or patterns.is_default(reader, *(_PRODUCTS if is_factor else _ADD)):
            yield reader


def _is_beside(node: ir.Node, vector: ir.Value) -> bool:
    """Whether a node joins the vector and others."""
    return patterns.is_default(node, "Concat") and vector in map(_vector, patterns.operands(node))


def _backwards(node: ir.Node) -> Iterator[ir.Node]:
    """What makes the terms of a sum, or what a node moves or scales."""
    moved = _scaled(node)
    terms = patterns.operands(node) if patterns.is_default(node, *_ADD) else () if moved is None else (moved,)
    yield from (maker for value in terms if (maker := value.producer()) is not None)


def _reach(starts: list[ir.Node], edges: Callable[[ir.Node], Iterable[ir.Node]]) -> Mapping[ir.Node, ir.Node]:
    """The nodes that are nearest to the starts, each with the node before it."""
    found: dict[ir.Node, ir.Node] = {}
    todo = deque(starts)
    while todo and len(found) < _MOST:
        node = todo.popleft()
        for other in edges(node):
            if other not in found:
                found[other] = node
                todo.append(other)
    return found


def _way(node: ir.Node, before: Mapping[ir.Node, ir.Node]) -> Iterator[ir.Node]:
    """The nodes from this one to where the search started; a start may be reached again, from another."""
    way = dict.fromkeys((node,))
    while (node := before.get(node, node)) not in way:
        way[node] = None
    yield from way


def _vector(value: ir.Value) -> ir.Value:
    """The value that is only moved, scaled by a number or given another sign to make this one."""
    for _ in range(_DEPTH):
        node = value.producer()
        before = _scaled(node) if node is not None else None
        if before is None:
            break
        value = before
    return value


def _scaled(node: ir.Node) -> ir.Value | None:
    """What a node moves, or multiplies by a number; None for any other node."""
    return patterns.moved_or_scaled(node, _MOVE, lambda value: patterns.scalar(value) is not None)
