"""Written-out norms: data divided by a power mean, or by a power sum, of themselves; and groups as channels.

    d = x - mean(x)                       LayerNormalization; d = x: RMSNormalization, LpNormalization
    s = sqrt(mean(d²) + epsilon)          or the sum, the largest of the two, and so on
    y = d / s                             or d * (1 / s), d * (...) ** -0.5; also weight * d / s
    z = y * weight + bias

From the reduction on, every operator is homogeneous in d up to a lower bound, so that degrees determine the
outcome: 2 for a square, half of the operand's for a root, its negative for a reciprocal. A quotient of degree
0 is at most the square root of the number of elements, or 1 with a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_rewrite.analysis import long_sums
from amp_rewrite.analysis.idioms.idiom import Idiom, WrittenNorm
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.patterns import Match, Pattern, either, fits, moved, number, op, part, steps, var, when
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.onnx_types import element_types
from amp_rewrite.operators.catalogue import REARRANGES
from amp_rewrite.policy.entries import Operator
from amp_rewrite.policy.options import Options

CENTRED: Operator = ("", "LayerNormalization")
MEAN: Operator = ("", "RMSNormalization")
SUM: Operator = ("", "LpNormalization")
GROUPS: Operator = ("", "GroupNormalization")
_LONGEST = 12
"""Maximum number of nodes from the reduction to the quotient."""
_ONE_TYPE = 17
"""Opset from which LayerNormalization has one type for data and weights (onnxruntime fuses to it)."""


def _shapes_a_mean(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if node.op_type == "Div" or node.op_type in REARRANGES else None


def _is_mean(match: Match) -> bool:
    """Return whether a reduction is a mean, or one node divides the sum by the number of its terms."""
    *_, reduction = (node for node in match.nodes if node.op_type in ("ReduceMean", "ReduceSum"))
    divisors = [node.inputs[1] for node in match.nodes if node.op_type == "Div"]
    if reduction.op_type == "ReduceMean" or len(divisors) != 1:
        return reduction.op_type == "ReduceMean" and not divisors
    count = patterns.scalar(divisors[0])
    return patterns.is_of_sizes(divisors[0]) if count is None else count == long_sums.terms(reduction)


def _passes_on(node: ir.Node) -> ir.Value | None:
    """Return the operand in which a node is homogeneous, up to numbers that are added or bound it."""
    first, *others = node.inputs
    if node.op_type in ("Reciprocal", "Slice", "Sqrt") or node.op_type in REARRANGES:
        return first
    if node.op_type in ("Add", "Clip", "Max", "Sum"):
        computed = [value for value in patterns.operands(node) if patterns.scalar(value) is None]
        return computed[0] if len(computed) == 1 else None
    if node.op_type == "Pow":
        return first if patterns.scalar(others[0]) is not None else None
    if node.op_type not in ("Div", "Mul"):
        return None
    return first if patterns.is_of_sizes(others[0]) else others[0] if patterns.is_of_sizes(first) else None


def _has_degree_0(match: Match) -> bool:
    """Return whether a quotient is of degree 0 in its data."""
    (quotient, *_), power = match.nodes, match.of("power", "square of the mean")
    degree = 1.0 if any(node.op_type == "ReduceL2" for node in power) else 2.0
    for node in (node for node in reversed(match.of("chain")) if node not in power):
        if node.op_type == "Sqrt":
            degree /= 2
        elif node.op_type == "Pow":
            degree *= patterns.scalar(node.inputs[1]) or 0.0
        elif node.op_type == "Reciprocal" or (node.op_type == "Div" and _passes_on(node) is node.inputs[1]):
            degree = -degree
    return degree == (1 if quotient.op_type == "Div" else -1)


def _square(data: Pattern) -> Pattern:
    """Return the pattern of data times themselves."""
    return either(op("Pow", data, number(2.0)), op("Mul", data, data))


def _norm(data: Pattern, alternative: Pattern | None = None, dividend: Pattern | None = None) -> Pattern:
    """Return the pattern of data divided by a root of their power mean, or by the `alternative`."""
    squared = op("ReduceMean ReduceSum", _square(data))
    power = part("power", either(squared, op("ReduceSumSquare ReduceL2", data)))
    chain = part("chain", steps(_passes_on, power if alternative is None else alternative))
    return when(op("Div Mul", dividend or data, chain), _has_degree_0)


def _is_given(value: ir.Value) -> bool:
    return value.producer() is None or stored_as(value) is not None


_GIVEN = moved(fits(_is_given))
_PARAMETER = either(_GIVEN, op("Add", _GIVEN, _GIVEN))
_X = var("x")


def _norms() -> Pattern:
    """Return the pattern of data, centred or not, over a root of their power mean or of their variance."""
    mean = when(steps(_shapes_a_mean, op("ReduceMean ReduceSum", _X), alone=False), _is_mean)
    centred = part("centring", op("Sub", _X, mean))
    weighted = either(centred, op("Mul", centred, _PARAMETER))
    mean_of_squares = steps(_passes_on, part("power", op("ReduceMean ReduceSum", _square(_X))))
    square_of_mean = part("square of the mean", _square(op("ReduceMean", _X)))
    variance = op("Sub", mean_of_squares, square_of_mean)
    return either(_norm(centred, dividend=weighted), _norm(_X), _norm(_X, variance, weighted))


_NORM = _norms()


def _idiom(norm: WrittenNorm, opset: int, options: Options) -> Idiom:
    operator = CENTRED if norm.centring else MEAN if norm.reduction.op_type == "ReduceMean" else SUM
    outer = tuple(_weights(norm.result.outputs[0]))
    is_one = norm.reduction.op_type == "ReduceL2" and not norm.centring and options.target.norms_in_float32
    typed_as = _typed_as(norm, operator, outer, opset, options.half)
    return Idiom(operator, norm.data, norm.inner, norm.result, outer, typed_as, is_one)


def _typed_as(
    norm: WrittenNorm, operator: Operator, outer: tuple[ir.Node, ...], opset: int, half: Half
) -> ir.Value | None:
    """Return the value whose type onnxruntime requires of the weights, once it has fused them with the norm.

    For a norm of one type that is the data. In bfloat16 onnxruntime has no kernel with two types for any
    norm, and where it does not match LayerNormalization in a centred norm, the centred data are those of a
    simplified one.
    """
    if operator == SUM or not any(node.op_type == "Mul" for node in outer):
        return None
    if operator == CENTRED and half is not FLOAT16 and not _has_vectors(outer):
        return norm.centring[-1].outputs[0]
    is_picky = half is not FLOAT16 or (operator == CENTRED and opset >= _ONE_TYPE)
    return norm.data if is_picky else None


def _has_vectors(outer: tuple[ir.Node, ...]) -> bool:
    """Return whether there are a weight and a bias of one axis, as LayerNormalization requires."""
    ranks = [[len(v.shape) for v in node.inputs if v is not None and v.shape is not None] for node in outer]
    return len(outer) == _WEIGHT_AND_BIAS and all(1 in candidates for candidates in ranks)


_WEIGHT_AND_BIAS = 2


def find(graph: UnitGraph) -> Iterator[WrittenNorm]:
    """Yield the written-out norms of a model."""
    for node in graph.nodes_of("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2"):
        norm = _of(node)
        if norm is not None:
            yield norm


def _of(reduction: ir.Node) -> WrittenNorm | None:
    """Return the norm whose statistics begin with this reduction."""
    for end in patterns.ends_behind(reduction, _LONGEST):
        if patterns.is_default(end, "Div", "Mul"):
            match = patterns.match(_NORM, end.outputs[0])
            if match is not None and reduction in match.parts["power"]:
                centring = match.of("centring")[::-1]
                power = tuple(node for node in match.of("power")[::-1] if node not in centring)
                chain = match.but(*centring, *power, end)
                norm = WrittenNorm(match.values["x"], centring, power, reduction, chain, end)
                return norm if patterns.are_closed(norm.inner, end) else None
    return None


def _weights(value: ir.Value) -> Iterator[ir.Node]:
    """Return the multiplication by a weight and the addition of a bias after a normalised value."""
    for operator in ("Mul", "Add"):
        node = patterns.only_reader(value)
        if node is None or not patterns.is_default(node, operator):
            continue
        weight = patterns.other(node, value)
        if weight is not None and patterns.match(_PARAMETER, weight):
            yield node
            value = node.outputs[0]


def find_groups(graph: UnitGraph) -> Iterator[Idiom]:
    """Yield GroupNormalizations as exporters write them: groups as the channels of an InstanceNormalization,
    whose kernel computes mean and variance in float32 whatever its type: all of these have one colour.
    """
    grouped = op("Reshape", op("InstanceNormalization", op("Reshape", _X)))
    for node in graph.nodes_of("InstanceNormalization"):
        end = patterns.only_reader(node.outputs[0])
        match = patterns.match(grouped, end.outputs[0]) if end is not None and end.outputs else None
        if end is not None and match is not None and patterns.are_closed(match.nodes, end):
            weights = _weights(end.outputs[0])
            yield Idiom(GROUPS, match.values["x"], outer=(*match.but(), *weights))


def idioms(norms: Iterable[WrittenNorm], graph: UnitGraph, options: Options) -> Iterator[Idiom]:
    """Yield the norms of a model as idioms."""
    opset = element_types.default_opset(graph.root.opset_imports)
    yield from (_idiom(norm, opset, options) for norm in norms)
