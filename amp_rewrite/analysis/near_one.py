"""Numbers near 1 of which only counts how far from 1 they are: half has steps of 1/2048 there.

    log(1 + x)                              of small numbers, also log((1 + x) / (1 - x)), an atanh
    1 / (1 - tanh(x)**2), sqrt(1 - x**2)    slopes, a sine of a cosine
    sqrt(1 - exp(x)**2)                     what a decay leaves to the input of a gated recurrence
    atanh(tanh(x)), acos(cos(x))            an inverse of something bounded
    sqrt(1 - table[step])                   how much of a signal is noise, in the steps of a diffusion

What is taken from 1 is float32 as well, where an operator that saturates, a square or a stored table makes
it; an exponential is so by its list, or by what is known of its range (`bounds.taken_from_1`). Other
operators are no reason to hold a difference: the rest of a half number is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model.constants import stored_as
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_FROM_ONE = ("Acos", "Asin", "Atanh")
"""Operators to which it matters how near to 1 their input is."""
_FROM_ZERO = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0, "Sqrt": 0}
"""Operators to which it matters how near to zero an input is, and that input."""
_SATURATE = ("Cos", "Erf", "Exp", "HardSigmoid", "Sigmoid", "Sin", "Softmax", "Tanh")
_MOVE = ("Abs", "Cast", "Gather", "Identity", "Neg", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_BESIDE = ("Add", "Clip", "Max", "Min")
"""Operators that pass a value on beside a number."""
_PASSED = {*_MOVE, *_BESIDE, "Div", "Mul", "Pow"}
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Tanh")
"""Layers, and what a Mish takes of a softplus."""
_DEPTH = 6
"""The most nodes from 1 to either end."""

_Nodes = tuple[ir.Node, ...]


def check(graph: UnitGraph) -> Mapping[int, Evidence]:
    """The units from what is near 1 to what tells how near."""
    units = (unit for name in (*_FROM_ONE, *_FROM_ZERO) for unit in graph.by_operator.get(name, ()))
    ends = (graph.units[unit].node for unit in units if unit not in graph.spelled)
    held = {node for end in ends for node in _way(end) if node.op_type != "Exp"}
    evidence = Evidence(Authority.RANGE, Reason.NEAR_1)
    return dict.fromkeys(graph.of_nodes(held), evidence)


def _way(end: ir.Node) -> _Nodes:
    """The nodes from what is near 1 to this one; none where nothing is."""
    if patterns.is_default(end, *_FROM_ONE):
        before = made(end.inputs[0]) if end.inputs[0] is not None else ()
        return (end, *before) if before and patterns.is_default(before[-1], *_SATURATE) else ()
    if not patterns.is_default(end, *_FROM_ZERO) or _is_polynomial(end):
        return ()
    nodes, value = [end], end.inputs[_FROM_ZERO[end.op_type]]
    while (node := value.producer() if value is not None else None) is not None and len(nodes) <= _DEPTH:
        nodes.append(node)
        beside = beside_1(node)
        if beside is not None:
            before = made(beside)
            counts = end.op_type == "Log" or (_is_taken(node, before) and _is_near_1(before))
            way = (*nodes, *before)
            return way if counts and not (_is_bounded_logit(way) or _is_activation(way)) else ()
        if end.op_type == "Log" and (both := _atanh(node)):
            return (*nodes, *both)
        value = passed(node)
    return ()


def _is_polynomial(node: ir.Node) -> bool:
    """Whether a node is a power that is no root and no reciprocal, or may be none."""
    exponent = patterns.scalar(node.inputs[1]) if node.op_type == "Pow" else -1.0
    return exponent is None or (exponent >= 0 and exponent.is_integer())


def beside_1(node: ir.Node) -> ir.Value | None:
    """What a node adds to 1, or takes from it, or from what it takes 1; None for any other node."""
    given = patterns.operands(node) if patterns.is_default(node, "Add", "Sub") else ()
    if len(given) != 2:
        return None
    if patterns.scalar(given[0]) == 1:
        return given[1]
    return given[0] if patterns.scalar(given[1]) == 1 else None


def made(value: ir.Value) -> _Nodes:
    """The nodes that move, scale, bound or square a value on its way, up to what saturates."""
    nodes: list[ir.Node] = []
    while (node := value.producer()) is not None and len(nodes) < _DEPTH:
        if patterns.is_default(node, *_SATURATE):
            return (*nodes, node)
        before = passed(node)
        if before is None:
            break
        nodes.append(node)
        value = before
    return tuple(nodes)


def passed(node: ir.Node) -> ir.Value | None:
    """What a node moves, scales, squares, or adds a number to or bounds by one; None for any other node."""
    if node.op_type not in _PASSED:
        return None
    square = patterns.square_of(node)
    if square is not None:
        return square
    if patterns.is_default(node, *_BESIDE):
        computed = [value for value in patterns.operands(node) if patterns.scalar(value) is None]
        return computed[0] if len(computed) == 1 else None
    return patterns.moved_or_scaled(node, _MOVE, lambda value: patterns.scalar(value) is not None)


def _is_taken(node: ir.Node, before: Iterable[ir.Node]) -> bool:
    """Whether a node takes something from 1, or adds it with another sign."""
    numbers = (patterns.scalar(value) for each in before if each.op_type == "Mul" for value in each.inputs)
    is_negative = any(number is not None and number < 0 for number in numbers)
    return node.op_type == "Sub" or is_negative or any(each.op_type == "Neg" for each in before)


def _is_near_1(before: _Nodes) -> bool:
    """Whether what these nodes make, the last one first, is rounded to 1 in half though it is none."""
    if any(patterns.square_of(node) is not None for node in before):
        return True
    first = before[-1] if before else None
    if first is None or patterns.is_default(first, *_SATURATE):
        return first is not None
    return stored_as(passed(first)) is not None


def _is_bounded_logit(way: _Nodes) -> bool:
    """Whether these nodes, the last one first, are a bounded quotient whose logarithm is taken: a sigmoid
    that is inverted, to be one again when something small is added (the boxes of a DETR).
    """
    reader = patterns.only_reader(way[0].outputs[0])
    is_logit = (
        patterns.is_default(way[0], "Div") and reader is not None and patterns.is_default(reader, "Log")
    )
    return is_logit and any(patterns.is_default(node, "Clip", "Max", "Min") for node in way)


def _is_activation(way: _Nodes) -> bool:
    """Whether these nodes, the last one first, are the logarithm in a softplus that layers read, as
    max(x, 0) + log(1 + exp(-|x|)): what they lose near zero is nothing to a layer.
    """
    total = patterns.only_reader(way[0].outputs[0])
    if total is None or not patterns.is_default(total, "Add") or not patterns.is_default(way[-1], "Exp"):
        return False
    found = patterns.readers(total.outputs[0])
    is_log = patterns.is_default(way[0], "Log")
    return is_log and bool(found) and all(patterns.is_default(node, *_LAYERS) for node in found)


def _atanh(quotient: ir.Node) -> _Nodes:
    """The nodes that add something to 1 and take it from 1, for this quotient of the two."""
    if not patterns.is_default(quotient, "Div") or len(patterns.operands(quotient)) != 2:
        return ()
    makers = [value.producer() for value in patterns.operands(quotient)]
    nodes = [node for node in makers if node is not None]
    beside = [beside_1(node) for node in nodes]
    if len(nodes) != 2 or beside[0] is None or beside[0] is not beside[1]:
        return ()
    return (*nodes, *made(beside[0])) if {node.op_type for node in nodes} == {"Add", "Sub"} else ()
