"""Power means and sums of data, as nodes: what is squared, and the chain from its reduction to a quotient.

Degrees show what such a chain comes to: every operator of it is homogeneous but for a bound from below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.idioms import centring, patterns, self_products


def squared(reduction: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...], float] | None:
    """What is squared and reduced, the nodes that square it, and the degree of the outcome."""
    product = self_products.of(reduction)
    if product is not None:
        return product.data, product.nodes, 2.0
    value = reduction.inputs[0]
    if value is None or reduction.op_type in _PRODUCTS:
        return None
    if reduction.op_type in _DEGREES:
        return value, (), _DEGREES[reduction.op_type]
    node = value.producer()
    base = patterns.square_of(node) if node is not None else None
    return (base, (node,), 2.0) if node is not None and base is not None else None


_PRODUCTS = ("Einsum", "MatMul")
_DEGREES = {"ReduceSumSquare": 2.0, "ReduceL2": 1.0}


@dataclass(frozen=True, slots=True)
class Chain:
    """What follows a reduction: the nodes up to the quotient, the quotient, and what is divided."""

    nodes: tuple[ir.Node, ...]
    result: ir.Node
    dividend: ir.Value
    is_variance: bool


def chain_behind(value: ir.Value, degree: float, data: ir.Value) -> Chain | None:
    """The chain from a reduction of this degree in the data; None where it does not end in a quotient."""
    nodes: list[ir.Node] = []
    is_variance = False
    while (node := patterns.only_reader(value)) is not None and not node.domain:
        dividend = _dividend(node, value, degree)
        if dividend is not None:
            return Chain(tuple(nodes), node, dividend, is_variance)
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
    mean = centring.mean_of(patterns.square_of(square)) if square is not None else None
    own = mean is not None and centring.shared_data(mean.inputs[0], data) is not None
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
    return degree if patterns.is_of_sizes(patterns.other(node, value)) else None


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
    **dict.fromkeys(("Expand", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"), _moved),
    "Div": _divided,
    "Mul": _scaled,
    "Pow": _to_the_power,
    "Reciprocal": lambda _node, _value, degree: -degree,
    "Sqrt": lambda _node, _value, degree: degree / 2,
}
