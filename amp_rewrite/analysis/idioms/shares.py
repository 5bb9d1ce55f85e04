"""Written-out shares: what is nowhere negative, divided by its own sum or mean.

    y = v / (sum(v) + epsilon)            LpNormalization with p = 1; the mean may stand for the sum
    y = n / (mean(n) + epsilon)           with n = the L2 norms of x: the response that ConvNeXt V2 normalises

A share is at most 1, and with a mean at most the number of elements: however large the sum is, it ends here.
That holds where nothing is negative only: shares of what cancels out have no bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.idioms.normalisation import SUM
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import constants
from amp_rewrite.numerics.half import Half


def find(graph: UnitGraph, half: Half) -> Iterator[Idiom]:
    """The written-out shares of a model, whatever the half type."""
    del half
    for unit in dict.fromkeys(graph.by_operator.get("Div", ())):
        node = graph.units[unit].node
        inner = _inner(node) if patterns.is_default(node, "Div") else ()
        data = inner[0].inputs[0] if inner else None
        if data is not None and patterns.are_closed(inner, node):
            yield Idiom(SUM, data, inner, node)


def _inner(quotient: ir.Node) -> tuple[ir.Node, ...]:
    """The nodes from the first reduction to the quotient; none where this is no share."""
    part, whole = (*quotient.inputs, None, None)[:2]
    if part is None or whole is None or patterns.maker(part, "Exp") is not None:  # which is a Softmax
        return ()
    nodes = [quotient]
    while (node := whole.producer()) is not None and not patterns.is_default(node, *_REDUCTIONS):
        passed = _passed(node)
        if passed is None:
            return ()
        nodes.append(node)
        whole = passed
    if node is None or node.inputs[0] is None or patterns.origin(node.inputs[0]) is not patterns.origin(part):
        return ()
    if node.op_type == "ReduceMean" and not _averages_few(node):
        return ()
    norm = patterns.maker(part, "ReduceL2", "ReduceL1")
    is_share = norm is not None or is_nowhere_negative(part)
    return (*([norm] if norm is not None else []), node, *reversed(nodes)) if is_share else ()


_REDUCTIONS = ("ReduceMean", "ReduceSum")


def _averages_few(mean: ir.Node) -> bool:
    """Whether a mean is known to be of no more elements than a share of it may be large."""
    before, after = (
        value.shape if value is not None else None for value in (mean.inputs[0], mean.outputs[0])
    )
    if before is None or after is None or len(before) != len(after):
        return False
    sizes = [size for size, left in zip(before, after, strict=True) if left == 1]
    known = [size for size in sizes if isinstance(size, int)]
    return len(known) == len(sizes) and math.prod(known) <= _MOST


_MOST = 32_752
"""Half of what float16 holds: the largest share is the number of elements."""


def _passed(node: ir.Node) -> ir.Value | None:
    """The sum that a node passes on, or adds a number to that is not negative; None for any other node."""
    if patterns.is_default(node, "Cast", "Expand", "Identity", "Squeeze", "Unsqueeze"):
        return node.inputs[0]
    if patterns.is_default(node, "Add", "Clip", "Max") and node.inputs[0] is not None:
        given = patterns.operands(node)
        sums = [value for value in given if patterns.scalar(value) is None]
        is_above = all((patterns.scalar(value) or 0.0) >= 0 for value in given)
        return sums[0] if len(sums) == 1 and is_above else None
    return None


def is_nowhere_negative(value: ir.Value | None, depth: int = 6) -> bool:
    """Whether a value is known to have no element below 0, by the nodes that make it."""
    if value is None or depth == 0:
        return False
    tensor = None if value.is_graph_input() else constants.stored_as(value)
    if tensor is not None:
        return tensor.dtype.is_floating_point() and bool((constants.numbers(tensor) >= 0).all())
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type in _ALL:
        return all(is_nowhere_negative(given, depth - 1) for given in patterns.operands(node))
    if node.op_type in _FIRST:
        return is_nowhere_negative(node.inputs[0], depth - 1)
    return node.op_type in _NEVER_NEGATIVE or _is_rest(node)


def _is_rest(node: ir.Node) -> bool:
    """Whether a node takes something that is at most 1 from 1."""
    if node.op_type != "Sub" or len(node.inputs) != 2:
        return False
    return patterns.scalar(node.inputs[0]) == 1 and patterns.maker(node.inputs[1], *_AT_MOST_ONE) is not None


_NEVER_NEGATIVE = frozenset(
    "Abs Exp HardSigmoid ReduceL1 ReduceL2 ReduceSumSquare Relu Sigmoid Softmax Softplus Sqrt".split()
)
_AT_MOST_ONE = ("HardSigmoid", "Sigmoid", "Softmax")
_ALL = frozenset("Add Max Mul".split())
_FIRST = frozenset(
    """Cast Expand Flatten Gather GatherElements GatherND Identity ReduceMax ReduceMean ReduceSum Reshape
    Slice Split Squeeze Tile TopK Transpose Unsqueeze""".split()
)
