"""Operators that sum in half on some runtimes -> nodes that round every partial sum, in float32.

The order is that of onnxruntime's WebGPU provider (version 0.4.0, by its shaders). MatMul, Gemm, Conv and
ConvTranspose have one accumulator of the output's type for each element, and go through the positions of the
filter, and through the channels at each. Reductions have 64 lanes, each in order, which are then halved; a
mean divides by the number of elements in half, which overflows from 65520 on. Norms
compute their statistics in float32, and round them before applying them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import tensor

_LANES, _VECTOR = 64, 4
"""The lanes of a workgroup (version 0.4.0: `ReduceKernel`, `Softmax`), and the elements of WGSL's largest
vector, of which a kernel takes the scalar product.
"""

_SINCE_ZEROS, _SOFTMAX_OF_AN_AXIS, _AXES_AS_INPUT = 9, 13, 18
"""The opsets of ConstantOfShape, of Softmax over one axis, and of ReduceMax with axes as an input."""

UNKNOWN = frozenset(
    "Attention CumSum Einsum GRU GlobalLpPool GroupNormalization LSTM LogSoftmax LpNormalization LpPool "
    "MeanVarianceNormalization RMSNormalization RNN ReduceL1 ReduceLogSum ReduceLogSumExp "
    "com.microsoft:Attention com.microsoft:FusedConv com.microsoft:FusedGemm com.microsoft:FusedMatMul "
    "com.microsoft:GroupQueryAttention com.microsoft:MultiHeadAttention "
    "com.microsoft:SkipLayerNormalization com.microsoft:SkipSimplifiedLayerNormalization".split()
)
"""Operators that accumulate in an order without a rule here, in operator-list notation."""


def apply(halves: Iterable[tuple[ir.Node, ir.DataType]], opset: int, names: UniqueNames) -> list[ir.Node]:
    """Make nodes of an emulation accumulate in their half type; return those that keep accumulating in
    float32, as too little is known about them.
    """
    remaining: list[ir.Node] = []
    for node, half in halves:
        steps = _Steps(node, half, opset, names)
        result = steps.result()
        if result is None or node.graph is None:
            remaining.append(node)
            continue
        node.graph.insert_before(node, steps.nodes)
        node.domain, node.op_type = "", "Identity"  # its name and its output stay
        node.attributes.clear()
        node.resize_inputs(1)
        node.replace_input_with(0, result)
    return remaining


def sums(node: ir.Node) -> bool:
    """Return whether a node adds up values."""
    operator = schema.written(node.domain, node.op_type)
    return operator in RULES or operator in UNKNOWN


def summed(value: ir.Value, half: ir.DataType, opset: int, names: UniqueNames) -> ir.Value:
    """Return the unrounded value that the producer of `value` would compute with half accumulation.

    The value itself if its producer does not accumulate, or in an unknown order.
    """
    node = value.producer()
    if node is None or node.graph is None or value is not node.outputs[0]:
        return value
    steps = _Steps(node, half, opset, names)
    result = steps.result()
    node.graph.insert_after(node, steps.nodes if result is not None else ())
    return value if result is None else result


class _Steps:
    """A builder of float32 `nodes` that replace `node`, whose half type is `half`."""

    def __init__(self, node: ir.Node, half: ir.DataType, opset: int, names: UniqueNames) -> None:
        self.node, self.half, self.opset = node, half, opset
        self._names = names
        self.nodes: list[ir.Node] = []

    def result(self) -> ir.Value | None:
        """Return the value before rounding; None if the node stays as it is."""
        rule = RULES.get(schema.written(self.node.domain, self.node.op_type))
        return None if rule is None else rule(self)

    def input(self, port: int) -> ir.Value:
        """Return a required input."""
        value = self.node.inputs[port]
        assert value is not None, "an input that the operator requires"
        return value

    @property
    def bias(self) -> ir.Value | None:
        """The third input; None if there is none."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, or its default."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def op(self, operator: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Append a node and return its output."""
        return self._add(ir.node(operator, inputs, attributes))

    def again(self, *inputs: ir.Value | None, outputs: int = 1) -> ir.Value:
        """Return the last output of a copy of the node for these inputs, with float32 accumulation."""
        attributes = self.node.attributes.values()
        return self._add(
            ir.Node(self.node.domain, self.node.op_type, inputs, attributes, num_outputs=outputs)
        )

    def _add(self, node: ir.Node) -> ir.Value:
        for value in node.outputs:
            value.name = self._names.of_value(self.node.outputs[0], node.op_type)
        node.name = self._names.of_node(node.outputs[-1].name or "")
        self.nodes.append(node)
        return node.outputs[-1]

    def constant(self, values: Any) -> ir.Value:
        """Return a constant of float32 or int64."""
        array = np.asarray(values)
        return self.op(
            "Constant", value=ir.tensor(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))
        )

    def rounded(self, value: ir.Value) -> ir.Value:
        """Return a value rounded to half."""
        return self.op("Cast", self.op("Cast", value, to=int(self.half)), to=int(ir.DataType.FLOAT))

    def added(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """Return a sum rounded to half."""
        return self.rounded(self.op("Add", one, other))

    def times(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """Return a product rounded to half."""
        return self.rounded(self.op("Mul", one, other))

    def shaped(self, value: ir.Value, dims: Sequence[int]) -> ir.Value:
        """Reshape a value, with 0 and -1 as in Reshape."""
        return self.op("Reshape", value, self.constant(dims))

    def like(self, value: ir.Value, other: ir.Value) -> ir.Value:
        """Reshape a value to the shape of another."""
        return self.op("Reshape", value, self.op("Shape", other))

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the size of an axis, [1]."""
        return self.op("Gather", self.op("Shape", value), self.constant([axis]), axis=0)

    def zeros(self, value: ir.Value) -> ir.Value:
        """Return zeros in the shape of a value."""
        if self.opset < _SINCE_ZEROS:
            return self.op("Mul", value, self.constant(0.0))
        return self.op("ConstantOfShape", self.op("Shape", value))

    def sum(self, trips: ir.Value, start: ir.Value, term: Callable[[_Steps, ir.Value], ir.Value]) -> ir.Value:
        """Accumulate `start` and that many terms in half, each a function of its index, [1]."""
        inner = _Steps(self.node, self.half, self.opset, self._names)
        turn, go, last = (
            ir.Value(name=self._names.of_value(self.node.outputs[0], "taken"), type=tensor(kind), shape=shape)
            for kind, shape in (
                (ir.DataType.INT64, ir.Shape(())),
                (ir.DataType.BOOL, ir.Shape(())),
                (ir.DataType.FLOAT, None),
            )
        )
        total = inner.added(last, term(inner, inner.shaped(turn, [1])))
        body = ir.Graph([turn, go, last], [inner.op("Identity", go), total], nodes=inner.nodes, name="body")
        return self.op("Loop", trips, None, start, body=body)


def _sizes(value: ir.Value) -> Sequence[int | None]:
    """Return the dimensions of a value, None for an unknown one; empty if the rank is unknown."""
    return [dim if isinstance(dim, int) else None for dim in value.shape or ()]


# Products: each term is rounded, and each partial sum.


def _sum_products(
    steps: _Steps, factors: Sequence[tuple[ir.Value, int]], start: ir.Value, width: int = 1
) -> ir.Value:
    """Return the accumulated products of two factors along their axes, `width` products per step."""

    def term(inner: _Steps, turn: ir.Value) -> ir.Value:
        first = inner.op("Mul", turn, inner.constant([width]))
        turns = [inner.op("Add", first, inner.constant([offset])) for offset in range(width)]
        slices = ([inner.op("Gather", value, each, axis=axis) for value, axis in factors] for each in turns)
        return reduce(inner.added, (inner.times(*pair) for pair in slices))

    trips = steps.op("Div", steps.size(*factors[0]), steps.constant([width]))
    return steps.sum(trips, start, term)


def _matmul(steps: _Steps) -> ir.Value | None:
    """Return a MatMul; None if a rank is unknown."""
    left, right = steps.input(0), steps.input(1)
    ranks = len(_sizes(left)), len(_sizes(right))
    if 0 in ranks:
        return None
    plain = steps.again(left, right)
    left = steps.shaped(left, [1, -1]) if ranks[0] == 1 else left
    right = steps.shaped(right, [-1, 1]) if ranks[1] == 1 else right
    factors = ((left, max(2, ranks[0]) - 1), (right, max(2, ranks[1]) - 2))
    return steps.like(_sum_products(steps, factors, steps.zeros(steps.op("MatMul", left, right))), plain)


def _gemm(steps: _Steps) -> ir.Value:
    """Return a Gemm; alpha and beta scale its terms, of which the kernel adds four at a time if it reads rows
    of the second matrix.
    """
    left, right, width = steps.input(0), steps.input(1), 1
    if steps.attribute("transA", 0):
        left = steps.op("Transpose", left, perm=[1, 0])
    if steps.attribute("transB", 0):
        terms = (*_sizes(right), 1, 1)[1] or 1
        width = 1 if terms % _VECTOR else _VECTOR
        right = steps.op("Transpose", right, perm=[1, 0])
    start = steps.zeros(steps.op("MatMul", left, right))
    total = _sum_products(steps, ((left, 1), (right, 0)), start, width)
    alpha, beta = steps.attribute("alpha", 1.0), steps.attribute("beta", 1.0)
    total = total if alpha == 1 else steps.times(total, steps.constant(alpha))
    if steps.bias is None or beta == 0:
        return total
    return steps.op("Add", total, steps.bias if beta == 1 else steps.times(steps.bias, steps.constant(beta)))


_WINDOW = "auto_pad dilations kernel_shape output_padding output_shape pads strides".split()


def _patches(steps: _Steps, operator: str, window: Sequence[int], channels: int) -> ir.Value:
    """Return the patches (im2col), [N, channels * filter elements, ...], by a one-hot convolution."""
    spots = math.prod(window)
    ones = np.tile(np.eye(spots, dtype=np.float32), (channels, 1))
    rows = [channels, spots] if operator == "ConvTranspose" else [channels * spots, 1]
    attributes = {name: steps.attribute(name) for name in _WINDOW if name in steps.node.attributes}
    filters = steps.constant(ones.reshape([*rows, *window]))
    return steps.op(operator, steps.input(0), filters, group=channels, **attributes)


def _conv(steps: _Steps) -> ir.Value | None:
    """Return a Conv or ConvTranspose (filter in reverse order); None if the filter's shape is unknown."""
    dims = [dim or 0 for dim in _sizes(steps.input(1))]
    if len(dims) < 3 or not all(dims):
        return None
    operator, group, spots = steps.node.op_type, steps.attribute("group", 1), math.prod(dims[2:])
    if operator == "Conv":
        outputs, channels, filters = dims[0] // group, dims[1], steps.input(1)
    else:
        channels, outputs = dims[0] // group, dims[1]
        filters = steps.shaped(steps.input(1), [group, channels, outputs, spots])
        filters = steps.op("Transpose", filters, perm=[0, 2, 1, 3])
    places = np.arange(channels * spots).reshape(channels, spots).T
    order = steps.constant((places if operator == "Conv" else places[::-1]).ravel())
    patches = _patches(steps, operator, dims[2:], group * channels)
    columns = steps.shaped(patches, [0, group, channels * spots, -1])
    filters = steps.shaped(filters, [group, outputs, channels * spots])
    factors = [(steps.op("Gather", each, order, axis=2), 2) for each in (columns, filters)]
    plain = steps.again(steps.input(0), steps.input(1))
    start = steps.zeros(steps.shaped(plain, [0, group, outputs, -1]))
    total = steps.like(_sum_products(steps, factors, start), plain)
    if steps.bias is None:
        return total
    return steps.op("Add", total, steps.shaped(steps.bias, [1, -1, *[1] * (len(dims) - 2)]))


# Sums of one tensor.


def _sum_by_lanes(steps: _Steps, value: ir.Value, axis: int, lanes: int) -> ir.Value:
    """Return the sum over the last axis, or over another by a single lane in order; the axis keeps size 1."""
    zero = steps.zeros(steps.op("Gather", value, steps.constant([0]), axis=axis))
    start = steps.op("Concat", *[zero] * lanes, axis=axis)
    ended, places = steps.op("Concat", value, start, axis=axis), steps.constant(range(lanes))

    def term(inner: _Steps, turn: ir.Value) -> ir.Value:
        place = inner.op("Add", inner.op("Mul", turn, inner.constant([lanes])), places)
        return inner.op("Gather", ended, place, axis=axis)

    one = steps.constant([1])  # round more than are full
    rounds = steps.op("Add", steps.op("Div", steps.size(value, axis), steps.constant([lanes])), one)
    total = steps.sum(rounds, start, term)
    while lanes > 1:
        padded, lower = steps.op("Concat", total, zero, axis=axis), (lanes + 1) // 2
        halves = (range(lower), range(lower, 2 * lower))
        total = steps.added(*(steps.op("Gather", padded, steps.constant(half), axis=axis) for half in halves))
        lanes = lower
    return total


def _lanes(dims: Iterable[int | None]) -> int:
    """Return the number of lanes for so many elements: all lanes if the count is unknown."""
    return min(math.prod(dim or 0 for dim in dims) or _LANES, _LANES)


def _mean(steps: _Steps, total: ir.Value, terms: ir.Value, axis: int) -> ir.Value:
    count = steps.op("Cast", steps.size(terms, axis), to=int(ir.DataType.FLOAT))
    return steps.op("Div", total, steps.rounded(count))


def _reduced(steps: _Steps) -> ir.Value | None:
    """Return a ReduceSum, ReduceMean, ReduceSumSquare or ReduceL2; None if the axes are unknown."""
    value, dims, operator = steps.input(0), _sizes(steps.input(0)), steps.node.op_type
    axes = _axes(steps, len(dims))
    if not axes or any(dims[axis] == 0 for axis in axes):
        return None
    terms = steps.times(value, value) if operator in ("ReduceSumSquare", "ReduceL2") else value
    others = [axis for axis in range(len(dims)) if axis not in axes]
    flat = steps.shaped(steps.op("Transpose", terms, perm=[*others, *axes]), [*[0] * len(others), -1])
    total = _sum_by_lanes(steps, flat, len(others), _lanes(dims[axis] for axis in axes))
    if operator == "ReduceMean":
        total = _mean(steps, total, flat, len(others))
    total = steps.op("Sqrt", total) if operator == "ReduceL2" else total
    return steps.like(total, steps.again(*steps.node.inputs))


def _axes(steps: _Steps, rank: int) -> Sequence[int]:
    """Return the reduced axes, in order; empty if they are unknown, or none is to be reduced."""
    axes: Sequence[int] = steps.attribute("axes", ())
    if len(steps.node.inputs) > 1 and steps.node.inputs[1] is not None:
        constant = constants.stored_as(steps.node.inputs[1])
        if constant is None:
            return ()
        axes = constant.numpy().tolist()
    if not axes and steps.attribute("noop_with_empty_axes", 0):
        return ()
    return sorted(axis % rank for axis in axes) if axes and rank else range(rank)


def _global_average_pool(steps: _Steps) -> ir.Value | None:
    """Return a GlobalAveragePool: in order up to the workgroup size, by lanes above or for an open size."""
    value, dims = steps.input(0), _sizes(steps.input(0))
    if len(dims) < 3 or 0 in dims[2:]:
        return None
    flat, lanes = steps.shaped(value, [0, 0, -1]), _lanes(dims[2:])
    total = _sum_by_lanes(steps, flat, 2, lanes if lanes == _LANES else 1)
    return steps.like(_mean(steps, total, flat, 2), steps.again(value))


def _average_pool(steps: _Steps) -> ir.Value | None:
    """Return an AveragePool in window order; None with padding or other options."""
    dims, window = _sizes(steps.input(0)), steps.attribute("kernel_shape", ())
    pads = steps.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    pads = pads or any(steps.attribute("pads", ())) or steps.attribute("ceil_mode", 0)
    if pads or not dims or not dims[1]:
        return None
    patches = _patches(steps, "Conv", window, dims[1])
    flat = steps.shaped(patches, [0, dims[1], math.prod(window), -1])
    return steps.like(_mean(steps, _sum_by_lanes(steps, flat, 2, 1), flat, 2), steps.again(steps.input(0)))


def _softmax(steps: _Steps) -> ir.Value | None:
    """Return a Softmax over the last axis with half differences, exponentials and sum; None for others."""
    value, dims = steps.input(0), _sizes(steps.input(0))
    axis = steps.attribute("axis", -1 if steps.opset >= _SOFTMAX_OF_AN_AXIS else 1)
    last = len(dims) - 1
    if not dims or axis % len(dims) != last or dims[last] == 0:
        return None
    if steps.opset < _AXES_AS_INPUT:
        highest = steps.op("ReduceMax", value, axes=[last])
    else:
        highest = steps.op("ReduceMax", value, steps.constant([last]))
    powers = steps.rounded(steps.op("Exp", steps.rounded(steps.op("Sub", value, highest))))
    terms, size = powers, dims[last] or 0
    if size and size % _VECTOR == 0:  # lanes add four elements at a time where these fill the row
        size //= _VECTOR
        fours = steps.shaped(powers, [*[0] * last, size, _VECTOR])
        terms = steps.shaped(_sum_by_lanes(steps, fours, last + 1, 1), [*[0] * last, size])
    return steps.op("Div", powers, _sum_by_lanes(steps, terms, last, _lanes([size])))


def _layer_norm(steps: _Steps) -> ir.Value | None:
    """Return a LayerNormalization, where subtracting a large mean cancels digits, or onnxruntime's
    SimplifiedLayerNormalization, which has no mean; None if the statistics are outputs.
    """
    if len(steps.node.outputs) > 1:
        return None
    centred, scale = steps.input(0), steps.input(1)
    is_simplified = steps.node.op_type == "SimplifiedLayerNormalization"
    inverse = steps.again(*steps.node.inputs, outputs=2 if is_simplified else 3)
    if not is_simplified:
        centred = steps.rounded(steps.op("Sub", centred, steps.rounded(steps.nodes[-1].outputs[1])))
    product = steps.op("Mul", steps.times(centred, steps.rounded(inverse)), scale)
    return product if steps.bias is None else steps.op("Add", steps.rounded(product), steps.bias)


def _instance_norm(steps: _Steps) -> ir.Value | None:
    """Return an InstanceNormalization, a product and a sum per element; None if the rank is unknown."""
    value, rank = steps.input(0), len(_sizes(steps.input(0)))
    if rank < 3:
        return None
    scale, bias = (steps.shaped(steps.input(port), [1, -1, *[1] * (rank - 2)]) for port in (1, 2))
    mean = steps.op("GlobalAveragePool", value)
    squares = steps.op("GlobalAveragePool", steps.op("Mul", value, value))
    variance = steps.op("Sub", squares, steps.op("Mul", mean, mean))
    epsilon = steps.constant(float(steps.attribute("epsilon", 1e-5)))
    factor = steps.op("Div", scale, steps.op("Sqrt", steps.op("Add", variance, epsilon)))
    shift = steps.op("Sub", bias, steps.op("Mul", mean, factor))
    return steps.op("Add", steps.times(value, steps.rounded(factor)), steps.rounded(shift))


RULES: Mapping[str, Callable[[_Steps], ir.Value | None]] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "MatMul": _matmul,
    "ReduceL2": _reduced,
    "ReduceMean": _reduced,
    "ReduceSum": _reduced,
    "ReduceSumSquare": _reduced,
    "SimplifiedLayerNormalization": _layer_norm,
    "Softmax": _softmax,
}
"""The rule of each operator, in operator-list notation. Except for UNKNOWN, all others compute an element
from few others, so that rounding the result is nearly the whole error.
"""
