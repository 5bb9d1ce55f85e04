"""Products that add up in half: each term is rounded, and each partial sum, in the order of a kernel.

That is what onnxruntime's WebGPU provider does: MatMul, Gemm, Conv and ConvTranspose of version 0.4.0 have
one accumulator of the output's type for each element, and go through the positions of the filter, and through
the channels at each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types.element_types import tensor

# Nodes in float32 that take the place of one node, and round where a kernel does in half.

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


class Steps:
    """Makes nodes for `node`, whose half type is `half`, in a model of that opset."""

    def __init__(self, node: ir.Node, half: ir.DataType, opset: int, names: UniqueNames) -> None:
        self.node, self.half, self.opset = node, half, opset
        self._names = names
        self.made: list[ir.Node] = []

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """The inputs of the node."""
        return self.node.inputs

    def given(self, port: int) -> ir.Value:
        """An input that the operator requires."""
        value = self.node.inputs[port]
        assert value is not None, "an input that the operator requires"
        return value

    def third(self) -> ir.Value | None:
        """The third input of the node, such as a bias; None where it has none."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    def number(self, name: str, default: Any) -> Any:
        """An attribute of the node, or its default."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def op(self, operator: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> ir.Value:
        """The last output of a new node."""
        kept = {name: value for name, value in attributes.items() if value is not None}
        node = ir.node(operator, inputs, kept, num_outputs=outputs)
        return self._add(node)

    def again(self, *inputs: ir.Value | None) -> ir.Value:
        """What the node itself computes, sums in float32, of its first inputs or of others."""
        node = ir.Node(self.node.domain, self.node.op_type, inputs, self.node.attributes.values())
        return self._add(node)

    def _add(self, node: ir.Node) -> ir.Value:
        for value in node.outputs:
            value.name = self._names.of_value(self.node.outputs[0], node.op_type)
        node.name = self._names.of_node(node.outputs[-1].name or "")
        self.made.append(node)
        return node.outputs[-1]

    def floats(self, values: Any) -> ir.Value:
        """A stored tensor in float32."""
        return self.op("Constant", value=ir.tensor(np.asarray(values, np.float32)))

    def whole(self, values: Any) -> ir.Value:
        """A stored tensor of integers."""
        return self.op("Constant", value=ir.tensor(np.asarray(values, np.int64)))

    def rounded(self, value: ir.Value) -> ir.Value:
        """A value as half holds it."""
        return self.op("Cast", self.op("Cast", value, to=int(self.half)), to=int(FLOAT))

    def added(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """A sum in half."""
        return self.rounded(self.op("Add", one, other))

    def times(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """A product in half."""
        return self.rounded(self.op("Mul", one, other))

    def shaped(self, value: ir.Value, dims: Sequence[int]) -> ir.Value:
        """A value in another shape, with 0 and -1 as Reshape has them."""
        return self.op("Reshape", value, self.whole(dims))

    def like(self, value: ir.Value, other: ir.Value) -> ir.Value:
        """A value in the shape of another."""
        return self.op("Reshape", value, self.op("Shape", other))

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of an axis, [1]."""
        return self.op("Gather", self.op("Shape", value), self.whole([axis]), axis=0)

    def picked(self, value: ir.Value, axis: int, first: int, end: int) -> ir.Value:
        """A range of an axis."""
        return self.op("Gather", value, self.whole(range(first, end)), axis=axis)

    def zeros(self, value: ir.Value) -> ir.Value:
        """As many zeros."""
        if self.opset < _SINCE_ZEROS:
            return self.op("Mul", value, self.floats(0))
        return self.op("ConstantOfShape", self.op("Shape", value))

    def looped(
        self, trips: ir.Value, start: ir.Value, step: Callable[[Steps, ir.Value, ir.Value], ir.Value]
    ) -> ir.Value:
        """What `step` makes of `start` in that many turns, of the turn's number ([1]) and the last result."""
        inner = Steps(self.node, self.half, self.opset, self._names)
        turn, go, last = (inner.taken(kind) for kind in (INT64, ir.DataType.BOOL, FLOAT))
        made = step(inner, inner.shaped(turn, [1]), last)
        body = ir.Graph([turn, go, last], [inner.op("Identity", go), made], nodes=inner.made, name="body")
        return self.op("Loop", trips, None, start, body=body)

    def taken(self, kind: ir.DataType) -> ir.Value:
        """An input of a body."""
        shape = None if kind == FLOAT else ir.Shape(())
        return ir.Value(
            name=self._names.of_value(self.node.outputs[0], "taken"), type=tensor(kind), shape=shape
        )


_SINCE_ZEROS = 9
"""The opset of ConstantOfShape."""


def sizes(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The dimensions of a value, None for one that is not known; None without a known rank."""
    shape = value.shape if value is not None else None
    return None if shape is None else tuple(dim if isinstance(dim, int) else None for dim in shape)


def fixed(value: ir.Value | None) -> tuple[int, ...] | None:
    """The dimensions of a value, where all are known."""
    known = sizes(value)
    found = tuple(dim for dim in known or () if dim is not None)
    return found if known is not None and len(found) == len(known) else None


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
