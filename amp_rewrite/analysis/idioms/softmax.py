"""Written-out softmaxes: exponentials of data from which their maximum was taken, and what is made of those.

    d = x - max(x)
    e = exp(d)                     at most 1
    s = sum(e)                     at most the number of elements
    y = e / s, e * (1 / s)         Softmax
    y = d - log(s)                 LogSoftmax
    y = max(x) + log(s)            a sum in logarithms, as safe as that

Without the maximum an exponential overflows, and is left to the lists.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.idioms.idiom import Idiom
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.entries import Operator

SOFTMAX: Operator = ("", "Softmax")
LOGARITHM: Operator = ("", "LogSoftmax")


def find(graph: UnitGraph, half: Half) -> Iterator[Idiom]:
    """The written-out softmaxes of a model, in a type that holds the sum of as many exponentials."""
    for unit in dict.fromkeys(graph.by_operator.get("Exp", ())):
        node = graph.units[unit].node
        below = _below(node) if not node.domain else None
        if below is not None and not _is_longer(below[-1], half.largest):
            idiom = _idiom(node, below, half)
            if idiom is not None:
                yield idiom


def _idiom(exponential: ir.Node, below: tuple[ir.Node, ...], half: Half) -> Idiom | None:
    """The idiom with these nodes before the exponential; in bfloat16, whose steps of 3 % are too coarse for a
    difference, it is computed in float32, if it has one result.
    """
    behind = tuple(_behind(exponential, frozenset(below)))
    operator = LOGARITHM if any(node.op_type == "Log" for node in behind) else SOFTMAX
    nodes = tuple(dict.fromkeys((*below, exponential, *behind)))
    data = below[-1].inputs[0]
    assert data is not None, "what is reduced is there"
    if half is FLOAT16:
        return Idiom(operator, data, outer=nodes)
    is_one = patterns.are_closed(nodes, nodes[-1])
    return Idiom(operator, data, inner=nodes, result=nodes[-1]) if is_one else None


def _below(exponential: ir.Node) -> tuple[ir.Node, ...] | None:
    """The difference and the maximum before an exponential, None where it is not of such a difference."""
    difference = patterns.maker(_first(exponential), "Sub")
    if difference is None or len(difference.inputs) != 2 or difference.inputs[0] is None:
        return None
    maximum = patterns.maker(difference.inputs[1], "ReduceMax")
    reduced = _first(maximum) if maximum is not None else None
    if maximum is None or reduced is None or not _keeps_axes(maximum):
        return None
    same = patterns.origin(reduced) is patterns.origin(difference.inputs[0])
    return (difference, maximum) if same else None


def _first(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if node.inputs else None


def _keeps_axes(reduction: ir.Node) -> bool:
    """Whether the maximum stays beside what it is of; without its axis it could be that of other elements."""
    keep = reduction.attributes.get("keepdims")
    known = keep is not None and not keep.is_ref() and keep.type == ir.AttributeType.INT
    return keep is None or (known and keep.as_int() == 1)


def _behind(exponential: ir.Node, below: frozenset[ir.Node]) -> Iterator[ir.Node]:
    """The sums of an exponential, and what divides by them or takes their logarithm, in this order."""
    for total in _readers(exponential, "ReduceSum"):
        yield total
        quotients = [*_readers(total, "Div")]
        for between in _readers(total, "Reciprocal", "Log"):
            yield between
            quotients += _readers(between, *_ENDS[between.op_type])
        yield from (node for node in quotients if _is_of(node, below | {exponential}))


_ENDS = {"Reciprocal": ("Mul",), "Log": ("Add", "Sub")}


def _readers(node: ir.Node, *operators: str) -> Iterator[ir.Node]:
    read = dict.fromkeys(reader for value in node.outputs for reader, _ in value.uses())
    return (reader for reader in read if patterns.is_default(reader, *operators))


def _is_of(node: ir.Node, made: frozenset[ir.Node]) -> bool:
    """Whether an operand of a node is what one of these makes, of whatever shape."""
    makers = (patterns.maker(value, *_MADE) or _unshaped(value) for value in patterns.operands(node))
    return any(maker in made for maker in makers)


_MADE = ("Exp", "ReduceMax", "Sub")


def _unshaped(value: ir.Value) -> ir.Node | None:
    shaped = patterns.maker(value, "Reshape", "Squeeze")
    return patterns.maker(_first(shaped), *_MADE) if shaped is not None else None


def _is_longer(reduction: ir.Node, largest: float) -> bool:
    """Whether an axis of the data is known to have more elements than the largest number of the type."""
    data = _first(reduction)
    shape = data.shape if data is not None else None
    return shape is not None and any(isinstance(size, int) and size > largest for size in shape)
