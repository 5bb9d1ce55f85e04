"""Products that add up in half: each term is rounded, and each partial sum, in the order of a kernel.

That is what onnxruntime's WebGPU provider does: MatMul, Gemm, Conv and ConvTranspose of version 0.4.0 have
one accumulator of the output's type for each element, and go through the positions of the filter, and through
the channels at each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.running.half_steps import Steps, fixed, sizes


@dataclass(frozen=True, slots=True)
class _Factor:
    """A value that is gone through along an axis."""

    value: ir.Value
    axis: int


def _by_fours(steps: Steps, one: _Factor, other: _Factor, start: ir.Value, size: int) -> ir.Value:
    """The same, where each turn adds the sum of four products."""
    width = steps.whole([FOUR])

    def step(inner: Steps, turn: ir.Value, last: ir.Value) -> ir.Value:
        first = inner.op("Mul", turn, width)
        places = [inner.op("Add", first, inner.whole([at])) for at in range(FOUR)]
        slices = [
            [inner.op("Gather", factor.value, at, axis=factor.axis) for factor in (one, other)]
            for at in places
        ]
        return inner.added(last, reduce(inner.added, (inner.times(*pair) for pair in slices)))

    return steps.looped(steps.whole([size // FOUR]), start, step)


FOUR = 4
"""The elements of WGSL's largest vector, of which a kernel takes the scalar product."""


def _summed(
    steps: Steps, one: _Factor, other: _Factor, start: ir.Value, order: Sequence[int] | None = None
) -> ir.Value:
    """The sum, from `start`, of the products of slices; in that order, or as they stand."""
    if order is None:
        trips, places = steps.size(one.value, one.axis), None
    else:
        trips, places = steps.whole([len(order)]), steps.whole(order)

    def step(inner: Steps, turn: ir.Value, last: ir.Value) -> ir.Value:
        at = turn if places is None else inner.op("Gather", places, turn, axis=0)
        slices = (inner.op("Gather", factor.value, at, axis=factor.axis) for factor in (one, other))
        return inner.added(last, inner.times(*slices))

    return steps.looped(trips, start, step)


def matmul(steps: Steps) -> ir.Value | None:
    """MatMul; None where a rank is not known."""
    one, other = steps.inputs[:2]
    ranks = sizes(one), sizes(other)
    if one is None or other is None or ranks[0] is None or ranks[1] is None:
        return None
    row, column = len(ranks[0]) == 1, len(ranks[1]) == 1
    left = steps.shaped(one, [1, -1]) if row else one
    right = steps.shaped(other, [-1, 1]) if column else other
    made = _product(steps, left, right, max(2, len(ranks[0])), max(2, len(ranks[1])))
    return steps.like(made, steps.again(one, other)) if row or column else made


def _product(steps: Steps, one: ir.Value, other: ir.Value, rank: int, other_rank: int) -> ir.Value:
    start = steps.zeros(steps.op("MatMul", one, other))
    return _summed(steps, _Factor(one, rank - 1), _Factor(other, other_rank - 2), start)


def gemm(steps: Steps) -> ir.Value | None:
    """Gemm: alpha and beta are factors of what is summed."""
    one, other = steps.inputs[:2]
    if one is None or other is None:
        return None
    turned = (("transA", one), ("transB", other))
    left, right = (steps.op("Transpose", v, perm=[1, 0]) if steps.number(n, 0) else v for n, v in turned)
    dims = fixed(other) or (1, 1)
    by_fours = steps.number("transB", 0) and dims[1] % FOUR == 0
    if by_fours:  # the kernel holds rows of the second matrix
        start = steps.zeros(steps.op("MatMul", left, right))
        made = _by_fours(steps, _Factor(left, 1), _Factor(right, 0), start, dims[1])
    else:
        made = _product(steps, left, right, 2, 2)
    alpha, beta = steps.number("alpha", 1.0), steps.number("beta", 1.0)
    made = made if alpha == 1 else steps.times(made, steps.floats(alpha))
    added = steps.third()
    if added is None or beta == 0:
        return made
    return steps.op("Add", made, added if beta == 1 else steps.times(added, steps.floats(beta)))


def conv(steps: Steps) -> ir.Value | None:
    """Conv; None where the filter's shape is not known."""
    dims = fixed(steps.inputs[1])
    if dims is None or len(dims) < 3 or not all(dims):
        return None
    group, spots = steps.number("group", 1), math.prod(dims[2:])
    places = [channel * spots + spot for spot in range(spots) for channel in range(dims[1])]
    filters = steps.shaped(steps.given(1), [group, dims[0] // group, dims[1] * spots])
    patches = _patches(steps, [dims[1] * group * spots, 1, *dims[2:]], dims[1] * group)
    return _convolved(steps, patches, filters, [group, dims[0] // group, dims[1] * spots], places)


def fused_conv(steps: Steps) -> ir.Value | None:
    """onnxruntime's FusedConv; None as for Conv, for a further summand, and for an unknown activation."""
    names = _ACTIVATIONS.get(steps.number("activation", ""))
    made = conv(steps) if names is not None and len(steps.inputs) < 4 else None
    if made is None or names is None:
        return None
    given: dict[str, Any] = dict(zip(names, map(float, steps.number("activation_params", ())), strict=False))
    return steps.op(steps.number("activation", ""), steps.rounded(made), **given)


_ACTIVATIONS = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}
"""What onnxruntime fuses into a convolution, with the attributes that its parameters are."""


def conv_transpose(steps: Steps) -> ir.Value | None:
    """ConvTranspose, whose kernel goes through the filter backwards; None as for Conv."""
    dims = fixed(steps.inputs[1])
    if dims is None or len(dims) < 3 or not all(dims):
        return None
    group, spots = steps.number("group", 1), math.prod(dims[2:])
    channels = dims[0] // group
    places = [channel * spots + spot for spot in reversed(range(spots)) for channel in range(channels)]
    apart = steps.shaped(steps.given(1), [group, channels, dims[1], spots])
    turned = steps.op("Transpose", apart, perm=[0, 2, 1, 3])
    filters = steps.shaped(turned, [group, dims[1], channels * spots])
    patches = _patches(steps, [dims[0], spots, *dims[2:]], dims[0])
    return _convolved(steps, patches, filters, [group, dims[1], channels * spots], places)


def _patches(steps: Steps, dims: Sequence[int], channels: int) -> ir.Value:
    """What the filter meets, a channel for each of its elements: a convolution with filters of a single 1."""
    spots = math.prod(dims[2:])
    ones = np.tile(np.eye(spots, dtype=np.float32), (channels, 1)).reshape(dims)
    given = steps.node.attributes.items()
    attributes = {name: value.value for name, value in given if name not in _OTHERS}
    operator = "ConvTranspose" if steps.node.op_type == "ConvTranspose" else "Conv"
    return steps.op(operator, steps.given(0), steps.floats(ones), **attributes, group=channels)


_OTHERS = ("group", "activation", "activation_params")


def _convolved(
    steps: Steps, patches: ir.Value, filters: ir.Value, dims: Sequence[int], places: Sequence[int]
) -> ir.Value:
    """The sum over patches times filters ([group, outputs, terms], as `dims` says), and the bias."""
    group, outputs, terms = dims
    plain = steps.again(*steps.inputs[:2])
    start = steps.zeros(steps.shaped(plain, [0, group, outputs, -1]))
    met = steps.shaped(patches, [0, group, terms, -1])
    made = steps.like(_summed(steps, _Factor(met, 2), _Factor(filters, 2), start, places), plain)
    bias = steps.third()
    if bias is None:
        return made
    rank = len(sizes(steps.inputs[1]) or ())
    return steps.op("Add", made, steps.shaped(bias, [1, -1, *[1] * (rank - 2)]))
