"""Variances as the mean of squares less the square of the mean, where both are much larger than what is left.

    mean(x * x) - mean(x) ** 2                   also sums over a count, averages of windows, with weights
    mean(x * y) - mean(x) * mean(y)              covariances

Where the mean is 30, half has steps of 1/2 for the squares: no smaller variance is left. Those within norms
are parts of these (idioms.normalisation).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_AVERAGES = ("AveragePool", "Conv", "GlobalAveragePool", "ReduceMean", "ReduceSum", "ReduceSumSquare")
"""A Conv as in SSIM, whose window is a Gaussian."""
_MOVES = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_DEPTH = 6
"""The most nodes that move or scale a value on its way, and the most that multiply what is averaged."""


def check(graph: UnitGraph) -> Mapping[int, Evidence]:
    """The units that make a variance, from the squares and the mean up to the difference."""
    ends = [unit for unit in graph.by_operator.get("Sub", ()) if unit not in graph.spelled]
    held = {node for unit in ends for node in _variance(graph.units[unit].node)}
    evidence = Evidence(Authority.RANGE, Reason.VARIANCE)
    return dict.fromkeys((unit for unit in graph.of_nodes(held) if unit not in graph.spelled), evidence)


class _Made(NamedTuple):
    """The factors of what is averaged, and the nodes that multiply, average, scale and move them."""

    factors: Counter[ir.Value]
    nodes: tuple[ir.Node, ...]


def _variance(difference: ir.Node) -> tuple[ir.Node, ...]:
    """The nodes of a variance that ends in this difference; none of any other."""
    if not patterns.is_default(difference, "Sub") or None in difference.inputs:
        return ()
    squares, (square, behind) = _average(difference.inputs[0]), _scaled(difference.inputs[1])
    means = [_average(value) for value in _multiplied(square)]
    if squares is None or len(means) != 2 or means[0] is None or means[1] is None:
        return ()
    first, second = means[0].factors, means[1].factors
    both = squares.factors
    is_own = first | second <= both <= first + second and both not in (first, second)
    made = (*squares.nodes, *means[0].nodes, *means[1].nodes, *behind, difference)
    return made + ((square,) if square is not None else ()) if is_own else ()


def _average(value: ir.Value | None) -> _Made | None:
    """What is averaged or summed up to make a value."""
    node, behind = _scaled(value)
    if node is None or not patterns.is_default(node, *_AVERAGES) or node.inputs[0] is None:
        return None
    factors, products = _factors(node.inputs[0])
    if node.op_type == "ReduceSumSquare":
        factors = factors + factors
    return _Made(factors, (*products, node, *behind))


def _scaled(value: ir.Value | None) -> tuple[ir.Node | None, tuple[ir.Node, ...]]:
    """The node that makes a value but for moving and scaling it, and the nodes that do that."""
    nodes: list[ir.Node] = []
    while (node := value.producer() if value is not None else None) is not None and len(nodes) < _DEPTH:
        before = patterns.moved_or_scaled(node, _MOVES, patterns.is_of_sizes)
        if before is None:
            return node, tuple(nodes)
        nodes.append(node)
        value = before
    return None, ()


def _multiplied(node: ir.Node | None) -> tuple[ir.Value, ...]:
    """The two values that a node multiplies, one of them twice for a square; none of any other node."""
    if node is None:
        return ()
    base = patterns.square_of(node)
    if base is not None:
        return (base, base)
    return patterns.operands(node) if patterns.is_default(node, "Mul") else ()


def _factors(value: ir.Value) -> tuple[Counter[ir.Value], tuple[ir.Node, ...]]:
    """The values whose product a value is, and the nodes that multiply them."""
    found, nodes, todo = Counter[ir.Value](), list[ir.Node](), [value]
    while todo:
        value = patterns.origin(todo.pop())
        node = value.producer()
        factors = _multiplied(node) if len(nodes) < _DEPTH else ()
        if node is not None and factors:
            nodes.append(node)
            todo += factors
        else:
            found[value] += 1
    return found, tuple(dict.fromkeys(nodes))
