"""Transfer functions by operator: the interval of the first output of real numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.analysis.idioms import idiom
from amp_rewrite.analysis.long_sums import terms
from amp_rewrite.analysis.ranges import fill_of
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.bounds.intervals import (
    UNKNOWN,
    ZERO,
    Interval,
    hull,
    larger,
    smaller,
    summed,
    symmetric,
    times,
)
from amp_rewrite.bounds.operands import Operands
from amp_rewrite.model import patterns
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators.catalogue import EXTREMES, REARRANGES, SELECTS
from amp_rewrite.operators.record import Along, Norm

Transfer = Callable[[Operands], Interval]

_SOFTMAX = Interval(0.0, 1 + 2**-8)
"""What a softmax makes, rounding included."""
_ERROR = 2.0**-22
"""The absolute error of functions that runtimes approximate: four times float32's roundoff below 1."""
_LEAST_EPSILON = 1e-30
"""The least epsilon with which a norm is bounded: squares of numbers below 1e-22 are 0 in float32."""

# Families of operators.


def _family(operators: str | Iterable[str], transfer: Transfer) -> Mapping[str, Transfer]:
    return dict.fromkeys(operators.split() if isinstance(operators, str) else operators, transfer)


def _always(low: float, high: float) -> Transfer:
    return lambda _: Interval(low, high)


def _rising(function: Callable[[float], float]) -> Transfer:
    """Bound the image under a monotonic function that runtimes approximate, which keeps its sign."""

    def transfer(x: Operands) -> Interval:
        low, high = function(x[0].low), function(x[0].high)
        return Interval(
            low - _ERROR if low < 0 else max(low - _ERROR, 0.0),
            high + _ERROR if high > 0 else min(high + _ERROR, 0.0),
        )

    return transfer


def _norm(norm: Norm) -> Transfer:
    """Bound a norm along the last axis, or all spatial ones."""
    gamma, *beta = norm.weights

    def transfer(x: Operands) -> Interval:
        is_last = x.node.attributes.get_int("axis", -1) in (-1, len(x.dims(0)) - 1)
        sizes = x.dims(0)[2:] if norm.along is Along.SPATIAL else x.dims(gamma)[-1:] if is_last else ()
        size = math.prod(each or 0 for each in sizes)
        # a weight of size 1 is broadcast
        if size <= 1 or x.attribute("epsilon", norm.epsilon) < _LEAST_EPSILON:
            return UNKNOWN
        offset = x[beta[0]] if beta and x.value(beta[0]) is not None else ZERO
        return _normalised(size) * symmetric(x[gamma].most) + offset

    return transfer


def _normalised(size: int) -> Interval:
    """Bound data divided by the root of the mean of their squares, whatever they are."""
    return symmetric(math.sqrt(size) * summed(size))


# Single operators.


def _subtract(x: Operands) -> Interval:
    largest = x.producer(1, "ReduceMax")
    keeps = largest is not None and largest.attributes.get_int("keepdims", 1) == 1
    if largest is not None and keeps and largest.inputs[0] is x.value(0):  # x - max(x)
        return Interval(x[0].low - x[1].high, 0.0)
    return x[0] - x[1]


def _power(x: Operands) -> Interval:
    exponent, a = x.scalar(1), x[0]
    if exponent == 2:
        return a.squared()
    if exponent is None or exponent < 0:
        return UNKNOWN
    return Interval(a.low**exponent if exponent % 2 == 1 else 0.0, a.most**exponent)


def _joined(x: Operands) -> Interval:
    """Bound what selects elements of several inputs, unless it adds or multiplies them."""
    ports = [port for port in range(len(x.node.inputs)) if port in record_of(x.node).carries]
    return UNKNOWN if effective_op(x.node) in ("Add", "Mul") else hull(*map(x.__getitem__, ports))


def _chosen(x: Operands) -> Interval:
    """Bound Where: by its branches; the first is above a limit where that is the condition."""
    comparison, a = x.producer(0, "Greater", "GreaterOrEqual"), x[1]
    is_above = comparison is not None and comparison.inputs[0] is x.value(1)
    least = x.of(comparison.inputs[1]).low if comparison is not None and is_above else -math.inf
    return hull(Interval(max(a.low, least), a.high), x[2])


def _max_pool(x: Operands) -> Interval:
    """Keep the interval, unless a window may lie entirely in the padding, where it has no largest element."""
    holes = {*x.node.attributes.get_ints("dilations", ())} - {1}
    return UNKNOWN if holes or x.node.attributes.get_int("ceil_mode", 0) else x[0]


# Sums.


def _average(x: Operands) -> Interval:
    return hull(x[0].widened(summed(terms(x.node))), ZERO)  # to the border of a pool zeros may be added


def _total(a: Interval, count: int | None) -> Interval:
    """Bound a sum of so many elements; of an unknown number, by its sign."""
    number = Interval(count, count) if count is not None else Interval(0.0, math.inf)
    return (a * number).widened(summed(count))


def _recurrent(x: Operands) -> Interval:
    """Bound the outputs by the default activations and the initial state."""
    state = x[5] if x.value(5) is not None else ZERO
    return UNKNOWN if "activations" in x.node.attributes else hull(symmetric(1 + 2**-8), state)


def _matmul(x: Operands) -> Interval:
    count, softmax = terms(x.node), x.producer(0, "Softmax")
    if softmax is not None and softmax.attributes.get_int("axis", -1) in (-1, len(x.dims(0)) - 1):
        return Interval(0.0, _SOFTMAX.high * summed(count)) * hull(x[1], ZERO)  # averages of rows
    sums = [times(x[1].most, x.largest_sum(0, -1)), times(x[0].most, x.largest_sum(1, -2))]
    sums += [times(times(x[0].most, x[1].most), count)] if count is not None else []
    return symmetric(min(sums) * summed(count))


def _layer(x: Operands) -> Interval:
    """Bound a Gemm or Conv by stored weights: sums of products, and a bias where they may begin."""
    first = 1 if x.node.op_type == "Conv" else x.node.attributes.get_int("transB", 0)
    axes = range(first, len(x.dims(1)) if x.node.op_type == "Conv" else first + 1)
    most = times(x[0].most, x.largest_sum(1, *axes) * abs(x.attribute("alpha", 1.0)))
    bias = x[2].most * abs(x.attribute("beta", 1.0)) if x.value(2) is not None else 0.0
    return symmetric((most + bias) * summed(None))


TRANSFERS: Mapping[str, Transfer] = {
    **_family((REARRANGES | SELECTS | EXTREMES) - {"Dropout", "SequenceAt", "Trilu"}, lambda x: x[0]),
    **_family("AveragePool GlobalAveragePool ReduceMean", _average),
    **_family("Concat ScatterElements ScatterND", _joined),
    **_family("Conv Gemm", _layer),
    **_family("Cos Sign Sin", _always(-1.0, 1.0)),
    **_family("GRU LSTM RNN", _recurrent),
    **_family("Gelu HardSwish com.microsoft:Gelu", lambda x: hull(x[0], ZERO)),
    **_family("HardSigmoid Sigmoid", _always(0.0, 1.0)),
    "Abs": lambda x: larger(x[0], -x[0], ZERO),
    "Add": lambda x: x[0] + x[1],
    "Clip": lambda x: smaller(larger(x[0], x.given(1, "min", -math.inf)), x.given(2, "max", math.inf)),
    "ConstantOfShape": lambda x: Interval(*[float(fill_of(x.node).item())] * 2),
    "Div": lambda x: x[0] / x[1],
    "Erf": _rising(math.erf),
    "Exp": _rising(lambda x: math.exp(min(x, 89.0))),  # beyond float32 from there on
    "LeakyRelu": lambda x: hull(x[0], ZERO) if 0 <= x.attribute("alpha", 0.01) <= 1 else UNKNOWN,
    "MatMul": _matmul,
    "Max": lambda x: larger(*x.all),
    "MaxPool": _max_pool,
    "Min": lambda x: smaller(*x.all),
    "Mul": lambda x: x[0].squared() if x.value(0) is x.value(1) else x[0] * x[1],
    "Neg": lambda x: -x[0],
    "OneHot": lambda x: x[2],
    "Pad": lambda x: hull(x[0], x.given(2, "value", 0.0)),
    "Pow": _power,
    "Reciprocal": lambda x: Interval(1.0, 1.0) / x[0],
    "ReduceL2": lambda x: Interval(0.0, math.sqrt(_total(x[0].squared(), terms(x.node)).high)),
    "ReduceSum": lambda x: _total(x[0], terms(x.node)),
    "ReduceSumSquare": lambda x: _total(x[0].squared(), terms(x.node)),
    "Relu": lambda x: larger(x[0], ZERO),
    "Softmax": _always(_SOFTMAX.low, _SOFTMAX.high),
    "Softplus": _rising(lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x)))),
    "Sqrt": _rising(lambda x: math.sqrt(max(x, 0.0))),
    "Sub": _subtract,
    "Tanh": _rising(math.tanh),
    "Where": _chosen,
}
"""The transfer functions by operator, with its domain; those of norms follow from the catalogue."""


def find(node: ir.Node) -> Transfer | None:
    """Return the transfer function of a node; None where nothing is known."""
    norm = record_of(node).norm
    if norm is not None:
        return None if norm.along is Along.GROUP else _norm(norm)
    return TRANSFERS.get(schema.written(node.domain, node.op_type))


# Norms that are written out.


def written_out(graph: UnitGraph) -> dict[ir.Value, Interval]:
    """Return the intervals of the quotients of written-out norms of a known size."""
    sizes = {norm.result.outputs[0]: _size(norm, graph) for norm in graph.norms}
    return {value: _normalised(size) for value, size in sizes.items() if size}


def _size(norm: idiom.WrittenNorm, graph: UnitGraph) -> int | None:
    """Return the size of a mean of squares in float32, of data centred by the same mean; None of others."""
    size = _mean_of(norm.reduction)
    means = [_mean_of(node) for node in norm.centring if node.op_type != "Sub"]
    kinds = {graph.dtype(value) for node in norm.inner for value in node.outputs}
    squares = all(node is norm.reduction or node.op_type in ("Mul", "Pow") for node in norm.power)
    is_plain = {size, *means} == {size} and squares and kinds == {ir.DataType.FLOAT}
    return size if is_plain and _is_root(norm.chain) else None


def _mean_of(node: ir.Node) -> int | None:
    keeps = node.op_type == "ReduceMean" and node.attributes.get_int("keepdims", 1) == 1
    return terms(node) if keeps else None


def _is_root(nodes: Sequence[ir.Node]) -> bool:
    """Whether these nodes add at least _LEAST_EPSILON to a mean, and then scale nothing: as the quotient is
    homogeneous, they take the root, or its inverse.
    """
    steps = [node for node in nodes if node.op_type != "Identity"]
    read = [patterns.scalar(value) for node in steps[:1] for value in node.inputs]
    is_bounded = max((number for number in read if number is not None), default=0.0) >= _LEAST_EPSILON
    return is_bounded and all(
        node.op_type in (("Expand", "Pow", "Reciprocal", "Sqrt") if at else ("Add", "Max"))
        or (at and node.op_type == "Div" and patterns.scalar(node.inputs[0]) == 1.0)
        for at, node in enumerate(steps)
    )
