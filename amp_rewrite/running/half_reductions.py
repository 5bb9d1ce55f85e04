"""Sums of one tensor in half, as onnxruntime's WebGPU provider reduces: 64 lanes, each in order, then halves.

A mean divides by the number of elements as half holds it, which is infinite from 65520 on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.running.half_steps import Steps, sizes

LANES = 64
"""The lanes of a workgroup (version 0.4.0: `ReduceKernel`, `Softmax`)."""


def by_lanes(steps: Steps, value: ir.Value, axis: int, size: int) -> ir.Value:
    """The sum over the last axis, which stays, with size 1."""
    lanes = min(size, LANES)
    made = steps.picked(value, axis, 0, lanes)
    if (rounds := size // LANES) > 1:
        made = _further(steps, value, axis, rounds, made)
    if size > LANES and (rest := size % LANES):
        tail = steps.picked(value, axis, size - rest, size)
        made = _joined(steps, made, axis, tail, rest, LANES)
    while lanes > 1:
        kept = (lanes + 1) // 2
        upper = steps.picked(made, axis, kept, lanes)
        made = _joined(steps, made, axis, upper, lanes // 2, kept)
        lanes = kept
    return made


def _further(steps: Steps, value: ir.Value, axis: int, rounds: int, start: ir.Value) -> ir.Value:
    lanes, width = steps.whole(range(LANES, 2 * LANES)), steps.whole([LANES])

    def step(inner: Steps, turn: ir.Value, last: ir.Value) -> ir.Value:
        at = inner.op("Add", inner.op("Mul", turn, width), lanes)
        return inner.added(last, inner.op("Gather", value, at, axis=axis))

    return steps.looped(steps.whole([rounds - 1]), start, step)


def _joined(steps: Steps, made: ir.Value, axis: int, more: ir.Value, count: int, end: int) -> ir.Value:
    """The first `count` lanes with more added, and the others up to `end`."""
    summed = steps.added(steps.picked(made, axis, 0, count), more)
    return (
        summed
        if count == end
        else steps.op("Concat", summed, steps.picked(made, axis, count, end), axis=axis)
    )


def in_order(steps: Steps, value: ir.Value, axis: int, size: int) -> ir.Value:
    """The sum over an axis, one element after the other; it stays, with size 1."""

    def step(inner: Steps, turn: ir.Value, last: ir.Value) -> ir.Value:
        return inner.added(last, inner.op("Gather", value, turn, axis=axis))

    start = steps.zeros(steps.picked(value, axis, 0, 1))
    return steps.looped(steps.whole([size]), start, step)


def reduced(steps: Steps) -> ir.Value | None:
    """ReduceSum, ReduceMean, ReduceSumSquare and ReduceL2; None where it is not known what they add up."""
    value, dims = steps.inputs[0], sizes(steps.inputs[0])
    axes = _axes(steps, len(dims or ()))
    over = [dims[axis] for axis in axes] if dims else []
    counts = [count for count in over if count]
    if value is None or not dims or not axes or len(counts) < len(axes):
        return None
    operator = steps.node.op_type
    terms = steps.times(value, value) if operator in ("ReduceSumSquare", "ReduceL2") else value
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    flat = steps.shaped(
        steps.op("Transpose", terms, perm=[*kept, *axes]), [*[0] * len(kept), math.prod(counts)]
    )
    made = by_lanes(steps, flat, len(kept), math.prod(counts))
    if operator == "ReduceMean":
        made = _mean(steps, made, math.prod(counts))
    made = steps.op("Sqrt", made) if operator == "ReduceL2" else made
    return steps.like(made, steps.again(*steps.inputs))


def _mean(steps: Steps, summed: ir.Value, count: int) -> ir.Value:
    return steps.op("Div", summed, steps.rounded(steps.floats(count)))


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
    """GlobalAveragePool: in order up to a workgroup's size, by lanes beyond."""
    dims = fixed_tail(steps.inputs[0])
    value = steps.inputs[0]
    if value is None or not dims:
        return None
    size = math.prod(dims)
    flat = steps.shaped(value, [0, 0, size])
    summed = (in_order if size < LANES else by_lanes)(steps, flat, 2, size)
    return steps.like(_mean(steps, summed, size), steps.again(value))


def fixed_tail(value: ir.Value | None) -> tuple[int, ...] | None:
    """The sizes behind the second axis, where all are known and positive."""
    known = sizes(value) or ()
    found = tuple(dim for dim in known[2:] if dim)
    return found if len(known) > 2 and len(found) == len(known) - 2 else None


def average_pool(steps: Steps) -> ir.Value | None:
    """AveragePool without padding: in order over the window; None for others."""
    value, known = steps.inputs[0], sizes(steps.inputs[0])
    window = steps.number("kernel_shape", ())
    is_plain = not any(steps.number("pads", ())) and not steps.number("ceil_mode", 0)
    is_plain &= steps.number("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if value is None or known is None or not known[1] or not is_plain:
        return None
    channels, spots = known[1], math.prod(window)
    made = _windows(steps, value, channels, window)
    summed = in_order(steps, steps.shaped(made, [0, channels, spots, -1]), 2, spots)
    return steps.like(_mean(steps, summed, spots), steps.again(value))


def _windows(steps: Steps, value: ir.Value, channels: int, window: Sequence[int]) -> ir.Value:
    """What the window meets, a channel for each of its elements."""
    spots = math.prod(window)
    ones = [[[float(i == j) for j in range(spots)]] for i in range(spots)] * channels
    filters = steps.shaped(steps.floats(ones), [channels * spots, 1, *window])
    kept = {name: steps.number(name, None) for name in ("strides", "dilations")}
    return steps.op("Conv", value, filters, group=channels, kernel_shape=list(window), **kept)


def softmax(steps: Steps) -> ir.Value | None:
    """Softmax over the last axis: differences, exponentials and their sum are half; None for others."""
    value, known = steps.inputs[0], sizes(steps.inputs[0])
    axis = steps.number("axis", -1 if steps.opset >= _SOFTMAX_OF_AN_AXIS else 1)
    if value is None or known is None or axis % len(known) != len(known) - 1 or not known[-1]:
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


def _sum_of_four(steps: Steps, value: ir.Value, axis: int, size: int) -> ir.Value:
    """The sum of a row: lanes add four elements at a time where these fill the row."""
    if size % 4:
        return by_lanes(steps, value, axis, size)
    fours = steps.shaped(value, [*[0] * axis, size // 4, 4])
    added = in_order(steps, fours, axis + 1, 4)
    return by_lanes(steps, steps.shaped(added, [*[0] * axis, size // 4]), axis, size // 4)
