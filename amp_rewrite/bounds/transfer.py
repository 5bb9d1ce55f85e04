"""Transfer functions by operator: the interval of the first output of real numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
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
    rounded,
    smaller,
    summed,
    symmetric,
    times,
)
from amp_rewrite.model import constants, patterns
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.model.operator_calls import record_of
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators.catalogue import EXTREMES, REARRANGES, SELECTS
from amp_rewrite.operators.record import Along, Norm

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

_SOFTMAX = Interval(0.0, 1 + 2**-8)
"""What a softmax makes, rounding included."""
_ERROR = 2.0**-22
"""The absolute error of functions that runtimes approximate: four times float32's roundoff below 1."""
_LEAST_EPSILON = 1e-30
"""The least epsilon with which a norm is bounded: squares of numbers below 1e-22 are 0 in float32."""

# What a transfer function sees of a node.


@functools.cache
def of_type(dtype: ir.DataType | None) -> Interval:
    """Return the range of an element type; UNKNOWN for floats."""
    if dtype == ir.DataType.BOOL:
        return Interval(0.0, 1.0)
    if dtype is None or not dtype.is_integer() or dtype.bitwidth < 8:
        return UNKNOWN
    limits = np.iinfo(dtype.numpy())
    return Interval(float(limits.min), float(limits.max))


def of_tensor(tensor: ir.TensorProtocol) -> Interval:
    """Return the exact interval of a stored tensor of numbers, NaN aside."""
    is_number = tensor.dtype.is_floating_point() or tensor.dtype.is_integer()
    if not is_number or tensor.dtype.bitwidth < 8:
        return of_type(tensor.dtype)
    blocks = (np.asarray(block, np.float64) for block in constants.read(tensor) if block.size)
    ends = [rounded(float(np.fmin.reduce(block)), float(np.fmax.reduce(block))) for block in blocks]
    return hull(*ends) if ends else ZERO


@dataclass(frozen=True, slots=True)
class Operands:
    """The inputs of a node; `variable` are the stored values that a caller can override."""

    node: ir.Node
    of: Callable[[ir.Value | None], Interval]
    variable: Collection[ir.Value]

    def __getitem__(self, port: int) -> Interval:
        """Return the interval of an input."""
        return self.of(self.value(port))

    @property
    def all(self) -> list[Interval]:
        """The intervals of all inputs."""
        return [self.of(value) for value in self.node.inputs]

    def value(self, port: int) -> ir.Value | None:
        """Return an input; None if it is omitted."""
        return self.node.inputs[port] if port < len(self.node.inputs) else None

    def producer(self, port: int, *operators: str) -> ir.Node | None:
        """Return the producer of an input, if it is one of these standard operators."""
        value = self.value(port)
        node = value.producer() if value is not None else None
        return node if node is not None and patterns.is_default(node, *operators) else None

    def attribute(self, name: str, default: float) -> float:
        """Return an attribute that is a float."""
        return self.node.attributes.get_float(name, default)

    def given(self, port: int, name: str, default: float) -> Interval:
        """Return the interval of an input that was an attribute in old opsets."""
        number = self.attribute(name, default)
        return self[port] if self.value(port) is not None else Interval(number, number)

    def scalar(self, port: int) -> float | None:
        """Return the number of an input that is a stored scalar."""
        value = self.value(port)
        return None if value is None or value in self.variable else patterns.scalar(value)

    def dims(self, port: int) -> tuple[int | None, ...]:
        """Return the sizes of an input, None for open ones; nothing if its rank is unknown."""
        value = self.value(port)
        tensor = stored_as(value)
        if tensor is not None:
            return dims(tensor)
        shape = value.shape if value is not None and value.shape is not None else ()
        return tuple(size if isinstance(size, int) else None for size in shape)

    def largest_sum(self, port: int, *axes: int) -> float:
        """Return the largest sum of magnitudes along axes of stored weights, rounded; infinity of others."""
        value = self.value(port)
        tensor = None if value is None or value in self.variable else stored_as(value)
        if tensor is None or tensor.dtype not in _FLOATS or not tensor.size or len(dims(tensor)) < 2:
            return math.inf
        sums = np.abs(numbers(tensor).astype(np.float32)).sum(axis=axes, dtype=np.float64)
        largest = float(sums.max()) * summed(tensor.size // sums.size)
        return largest if math.isfinite(largest) else math.inf


Transfer = Callable[[Operands], Interval]

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
