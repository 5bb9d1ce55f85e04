"""Operators that sum in half on some runtimes -> nodes that round every partial sum, in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types import schema
from amp_rewrite.running import half_products
from amp_rewrite.running.half_products import Steps, sizes

# Norms whose statistics are float32, and whose mean, scale and shift are half before they are applied.
#
# So does onnxruntime's WebGPU provider (version 0.4.0: `LayerNorm`, `InstanceNorm`): a mean that is large
# beside the deviation costs digits.


def layer_norm(steps: Steps) -> ir.Value | None:
    """LayerNormalization; None where its statistics are outputs."""
    if len(steps.node.outputs) > 1:
        return None
    value, scale = steps.given(0), steps.given(1)
    bias = steps.third()
    kept = {name: steps.number(name, None) for name in ("axis", "epsilon", "stash_type")}
    inverse = steps.op("LayerNormalization", value, scale, bias, outputs=3, **kept)
    mean = steps.made[-1].outputs[1]
    centred = steps.rounded(steps.op("Sub", value, steps.rounded(mean)))
    made = steps.op("Mul", steps.times(centred, steps.rounded(inverse)), scale)
    return made if bias is None else steps.op("Add", steps.rounded(made), bias)


def simplified_layer_norm(steps: Steps) -> ir.Value | None:
    """SimplifiedLayerNormalization, as onnxruntime has it; None where its statistics are outputs."""
    if len(steps.node.outputs) > 1:
        return None
    value, scale = steps.given(0), steps.given(1)
    kept = {name: steps.number(name, None) for name in ("axis", "epsilon", "stash_type")}
    inverse = steps.op("SimplifiedLayerNormalization", value, scale, outputs=2, **kept)
    return steps.op("Mul", steps.times(value, steps.rounded(inverse)), scale)


def instance_norm(steps: Steps) -> ir.Value | None:
    """InstanceNormalization, one product and one sum per element; None where the rank is not known."""
    value, rank = steps.given(0), len(sizes(steps.inputs[0]) or ())
    if rank < 3:
        return None
    channels = [1, -1, *[1] * (rank - 2)]
    scale, bias = (steps.shaped(steps.given(port), channels) for port in (1, 2))
    mean = steps.op("GlobalAveragePool", value)
    squares = steps.op("GlobalAveragePool", steps.op("Mul", value, value))
    variance = steps.op("Sub", squares, steps.op("Mul", mean, mean))
    deviation = steps.op("Sqrt", steps.op("Add", variance, steps.floats(steps.number("epsilon", 1e-5))))
    factor = steps.op("Div", scale, deviation)
    shift = steps.op("Sub", bias, steps.op("Mul", mean, factor))
    return steps.op("Add", steps.times(value, steps.rounded(factor)), steps.rounded(shift))


# Sums of one tensor in half, as onnxruntime's WebGPU provider reduces: 64 lanes, each in order, then
# halves.
#
# A mean divides by the number of elements as half holds it, which is infinite from 65520 on.

LANES = 64
"""The lanes of a workgroup (version 0.4.0: `ReduceKernel`, `Softmax`)."""


def by_lanes(steps: Steps, value: ir.Value, axis: int) -> ir.Value:
    """The sum over the last axis, which stays, with size 1; that axis may have any size."""
    count, lanes = steps.size(value, axis), steps.whole(range(LANES))
    ended = _ended(steps, value, axis)

    def further(inner: Steps, turn: ir.Value, last: ir.Value) -> ir.Value:
        first = inner.op("Mul", inner.op("Add", turn, inner.whole([1])), inner.whole([LANES]))
        at = inner.op("Add", first, lanes)
        return inner.added(last, _elements(inner, ended, axis, at, count, count))

    def halved(inner: Steps, turn: ir.Value, last: ir.Value) -> ir.Value:
        power = inner.op("Gather", inner.whole([1 << i for i in range(_HALVINGS + 1)]), turn, axis=0)
        left, kept = (_ceiling(inner, used, by) for by in (power, inner.op("Add", power, power)))
        upper = inner.op("Add", lanes, kept)
        end = inner.whole([LANES])
        return inner.added(last, _elements(inner, _ended(inner, last, axis), axis, upper, left, end))

    start = _elements(steps, ended, axis, lanes, count, count)
    rounds = steps.op("Div", steps.op("Sub", count, steps.whole([1])), steps.whole([LANES]))
    made = steps.looped(rounds, start, further)
    used = _least(steps, count, steps.whole([LANES]))
    return steps.picked(steps.looped(steps.whole([_HALVINGS]), made, halved), axis, 0, 1)


_HALVINGS = 6
"""How often the lanes are halved until one is left."""


def _ended(steps: Steps, value: ir.Value, axis: int) -> ir.Value:
    """A value with a zero behind the last element of an axis."""
    return steps.op("Concat", value, steps.zeros(steps.picked(value, axis, 0, 1)), axis=axis)


def _elements(
    steps: Steps, ended: ir.Value, axis: int, at: ir.Value, count: ir.Value, end: ir.Value
) -> ir.Value:
    """The elements at these places of an axis; for places from `count` on that at `end`, a zero."""
    ahead = steps.op("Sub", count, at)
    positive = steps.op("Div", steps.op("Add", ahead, steps.op("Abs", ahead)), steps.whole([2]))
    within = _least(steps, positive, steps.whole([1]))  # as integers: Less and Where take these from opset 9
    place = steps.op("Add", end, steps.op("Mul", steps.op("Sub", at, end), within))
    return steps.op("Gather", ended, place, axis=axis)


def _least(steps: Steps, one: ir.Value, other: ir.Value) -> ir.Value:
    apart = steps.op("Abs", steps.op("Sub", one, other))
    return steps.op("Div", steps.op("Sub", steps.op("Add", one, other), apart), steps.whole([2]))


def _ceiling(steps: Steps, count: ir.Value, by: ir.Value) -> ir.Value:
    """A quotient, rounded up."""
    return steps.op("Div", steps.op("Sub", steps.op("Add", count, by), steps.whole([1])), by)


def in_order(steps: Steps, value: ir.Value, axis: int) -> ir.Value:
    """The sum over an axis, one element after the other; it stays, with size 1."""

    def step(inner: Steps, turn: ir.Value, last: ir.Value) -> ir.Value:
        return inner.added(last, inner.op("Gather", value, turn, axis=axis))

    return steps.looped(steps.size(value, axis), steps.zeros(steps.picked(value, axis, 0, 1)), step)


def reduced(steps: Steps) -> ir.Value | None:
    """ReduceSum, ReduceMean, ReduceSumSquare and ReduceL2; None where it is not known what they add up."""
    value, dims = steps.inputs[0], sizes(steps.inputs[0])
    axes = _axes(steps, len(dims or ()))
    if value is None or not dims or not axes or any(dims[axis] == 0 for axis in axes):
        return None
    operator = steps.node.op_type
    terms = steps.times(value, value) if operator in ("ReduceSumSquare", "ReduceL2") else value
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    flat = steps.shaped(steps.op("Transpose", terms, perm=[*kept, *axes]), [*[0] * len(kept), -1])
    made = by_lanes(steps, flat, len(kept))
    if operator == "ReduceMean":
        made = _mean(steps, made, flat, len(kept))
    made = steps.op("Sqrt", made) if operator == "ReduceL2" else made
    return steps.like(made, steps.again(*steps.inputs))


def _mean(steps: Steps, summed: ir.Value, terms: ir.Value, axis: int) -> ir.Value:
    count = steps.op("Cast", steps.size(terms, axis), to=int(ir.DataType.FLOAT))
    return steps.op("Div", summed, steps.rounded(count))


def _axes(steps: Steps, rank: int) -> Sequence[int]:
    """The axes that are reduced, in order; none where they are not known, or none are asked for."""
    stored = constants.stored_as(steps.inputs[1]) if len(steps.inputs) > 1 else None
    if len(steps.inputs) > 1 and steps.inputs[1] is not None:
        if stored is None:
            return ()
        given: Sequence[int] = stored.numpy().tolist()
    else:
        given = steps.number("axes", ())
    if not given and steps.number("noop_with_empty_axes", 0):
        return ()
    return sorted(axis % rank for axis in given) if given and rank else range(rank)


def global_average_pool(steps: Steps) -> ir.Value | None:
    """GlobalAveragePool: in order up to a workgroup's size, by lanes beyond and where the size is open."""
    value, dims = steps.inputs[0], sizes(steps.inputs[0]) or ()
    if value is None or len(dims) < 3 or 0 in dims[2:]:
        return None
    known = [dim for dim in dims[2:] if dim]
    is_small = len(known) == len(dims) - 2 and math.prod(known) < LANES
    flat = steps.shaped(value, [0, 0, -1])
    summed = (in_order if is_small else by_lanes)(steps, flat, 2)
    return steps.like(_mean(steps, summed, flat, 2), steps.again(value))


def average_pool(steps: Steps) -> ir.Value | None:
    """AveragePool without padding: in order over the window; None for others."""
    value, known = steps.inputs[0], sizes(steps.inputs[0])
    window = steps.number("kernel_shape", ())
    is_plain = not any(steps.number("pads", ())) and not steps.number("ceil_mode", 0)
    is_plain &= steps.number("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if value is None or known is None or not known[1] or not is_plain:
        return None
    channels, spots = known[1], math.prod(window)
    met = steps.shaped(_windows(steps, value, channels, window), [0, channels, spots, -1])
    return steps.like(_mean(steps, in_order(steps, met, 2), met, 2), steps.again(value))


def _windows(steps: Steps, value: ir.Value, channels: int, window: Sequence[int]) -> ir.Value:
    """What the window meets, a channel for each of its elements."""
    spots = math.prod(window)
    ones = [[[float(i == j) for j in range(spots)]] for i in range(spots)] * channels
    filters = steps.shaped(steps.floats(ones), [channels * spots, 1, *window])
    kept = {name: steps.number(name, None) for name in ("strides", "dilations")}
    return steps.op("Conv", value, filters, group=channels, kernel_shape=list(window), **kept)


def softmax(steps: Steps) -> ir.Value | None:
    """Softmax over the last axis: differences, exponentials and their sum are half; None for others. A row
    of open size is summed as one that four elements do not fill.
    """
    value, known = steps.inputs[0], sizes(steps.inputs[0])
    axis = steps.number("axis", -1 if steps.opset >= _SOFTMAX_OF_AN_AXIS else 1)
    if value is None or known is None or axis % len(known) != len(known) - 1 or known[-1] == 0:
        return None
    last = len(known) - 1
    highest = _highest(steps, value, last)
    powers = steps.rounded(steps.op("Exp", steps.rounded(steps.op("Sub", value, highest))))
    return steps.op("Div", powers, _sum_of_four(steps, powers, last, known[-1]))


_SOFTMAX_OF_AN_AXIS, _AXES_AS_INPUT = 13, 18


def _highest(steps: Steps, value: ir.Value, axis: int) -> ir.Value:
    if steps.opset < _AXES_AS_INPUT:
        return steps.op("ReduceMax", value, axes=[axis])
    return steps.op("ReduceMax", value, steps.whole([axis]))


def _sum_of_four(steps: Steps, value: ir.Value, axis: int, size: int | None) -> ir.Value:
    """The sum of a row: lanes add four elements at a time where these fill the row."""
    if size is None or size % 4:
        return by_lanes(steps, value, axis)
    added = in_order(steps, steps.shaped(value, [*[0] * axis, size // 4, 4]), axis + 1)
    return by_lanes(steps, steps.shaped(added, [*[0] * axis, size // 4]), axis)


Rule = Callable[[Steps], ir.Value | None]
"""Makes the steps of a node; returns the value before it is rounded, None where the node stays as it is."""

RULES: Mapping[str, Rule] = {
    "AveragePool": average_pool,
    "Conv": half_products.conv,
    "ConvTranspose": half_products.conv_transpose,
    "Gemm": half_products.gemm,
    "GlobalAveragePool": global_average_pool,
    "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm,
    "MatMul": half_products.matmul,
    "ReduceL2": reduced,
    "ReduceMean": reduced,
    "ReduceSum": reduced,
    "ReduceSumSquare": reduced,
    "com.microsoft:FusedConv": half_products.fused_conv,
    "SimplifiedLayerNormalization": simplified_layer_norm,
    "Softmax": softmax,
}
"""By operator, as lists write it. All others compute an element from few others, which rounding the result
is nearly all of, or stay with sums in float32.
"""


def apply(halves: Iterable[tuple[ir.Node, ir.DataType]], opset: int, names: UniqueNames) -> list[ir.Node]:
    """Makes nodes of an emulation, of which each was computed in that type, sum in it too; returns those of
    which too little is known, which sum in float32.
    """
    left: list[ir.Node] = []
    for node, half in halves:
        steps = Steps(node, half, opset, names)
        made = _made(steps)
        if made is None:
            left.append(node)
        else:
            _replace(node, steps, made)
    return left


def sums(node: ir.Node) -> bool:
    """Whether there is a rule for a node."""
    return schema.written(node.domain, node.op_type) in RULES


def _made(steps: Steps) -> ir.Value | None:
    return RULES[schema.written(steps.node.domain, steps.node.op_type)](steps)


def summed(value: ir.Value, half: ir.DataType, opset: int, names: UniqueNames) -> ir.Value:
    """A value beside a float32 one, not rounded at its end, that its node would make by sums in half.

    The value itself where its node sums nothing.
    """
    node = value.producer()
    if node is None or not sums(node) or value is not node.outputs[0]:
        return value
    steps = Steps(node, half, opset, names)
    made = _made(steps)
    if made is None:
        return value
    assert node.graph is not None, "the nodes of a model belong to its graphs"
    node.graph.insert_after(node, steps.made)
    return made


def _replace(node: ir.Node, steps: Steps, made: ir.Value) -> None:
    """The node keeps its name and its output, and hands on what was made."""
    assert node.graph is not None, "the nodes of a model belong to its graphs"
    node.graph.insert_before(node, steps.made)
    node.domain, node.op_type = "", "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, made)
