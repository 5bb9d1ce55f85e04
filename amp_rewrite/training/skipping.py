"""Whether gradients are finite, and steps that are skipped where they are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from amp_rewrite.training.finding import Step
from amp_rewrite.training.node_building import BOOL, FLOAT, NodeBuilder
from amp_rewrite.training.spec import Pair

DOUBLE = ir.DataType.DOUBLE

TINY = 2.0**-64
"""What gradients are multiplied by before their absolute values are summed: sums of 2^60 elements of
float32's largest number are finite then, and what vanishes is finite.
"""


def all_finite(gradients: Sequence[ir.Value], build: NodeBuilder) -> ir.Value:
    """A scalar that says whether every element of every gradient is finite.

    The sum of absolute values is infinite or NaN if an element is (IEEE 754); less than infinity is neither.
    """
    flags = [_finite(group, dtype, build) for dtype, group in _by_type(gradients) if group]
    found = flags[0]
    for other in flags[1:]:
        found = build.node("And", (found, other), "grads_finite__both", dtype=BOOL)
    return found


def _by_type(gradients: Iterable[ir.Value]) -> Iterator[tuple[ir.DataType, list[ir.Value]]]:
    """In float32 and in float64."""
    held = list(gradients)
    for dtype in (FLOAT, DOUBLE):
        yield dtype, [value for value in held if value.dtype == dtype]


def _finite(gradients: Sequence[ir.Value], dtype: ir.DataType, build: NodeBuilder) -> ir.Value:
    tiny = build.scalar("grads_finite__tiny", TINY, dtype)
    sums = [_absolute_sum(value, tiny, dtype, build) for value in gradients]
    total = sums[0]
    if len(sums) > 1:
        total = build.node("Sum", sums, "grads_finite__sum", dtype=dtype)
    infinity = build.scalar("grads_finite__infinity", float("inf"), dtype)
    return build.node("Less", (total, infinity), "grads_finite__flag", dtype=BOOL)


def _absolute_sum(value: ir.Value, tiny: ir.Value, dtype: ir.DataType, build: NodeBuilder) -> ir.Value:
    small = build.node("Mul", (value, tiny), f"{value.name}__small", dtype=dtype, shape=value.shape)
    return build.node("ReduceL1", (small,), f"{value.name}__l1", dtype=dtype, attributes={"keepdims": 0})


def guard(step: Step, finite: ir.Value, build: NodeBuilder) -> tuple[Pair, ...]:
    """Makes every state output the old state where gradients are not finite.

    Returns the pairs that are left as they are, since their output is an input of the model itself.
    """
    left: list[Pair] = []
    outputs = {value.name: value for value in build.graph.outputs}  # a gradient may have taken a name
    for pair in step.spec.state:
        old, new = step.borders.inputs[pair.input], outputs[pair.output]
        if new.is_graph_input():
            left.append(pair)
        else:
            _guard(old, new, finite, build)
    return tuple(left)


def _guard(old: ir.Value, new: ir.Value, finite: ir.Value, build: NodeBuilder) -> None:
    """The guarded value takes the name and the place of the output; other nodes read what they did."""
    dtype = old.dtype or FLOAT
    kept = build.node("Where", (finite, new, old), f"{new.name}__kept", dtype=dtype, shape=old.shape)
    outputs = build.graph.outputs
    for port, value in enumerate(list(outputs)):
        if value is new:
            outputs[port] = kept
    new.name, kept.name = kept.name, new.name
