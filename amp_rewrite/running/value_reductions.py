"""The nodes that reduce one value to a few numbers, and those that make a vector of such numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite.numerics.half import FLOAT16

PREFIX = "amp_rewrite_reduced"
"""What the names of values begin with that the nodes make."""

SINCE_COUNTS = 9
"""The opset from which on elements can be counted: that of Where."""

_SINCE_SEQUENCES = 11
"""The opset from which on any number of scalars are packed by two nodes."""

FLUSHED = FLOAT16.smallest / 2
"""The largest magnitude that float16 rounds to 0: of a tie, the even one."""

_LIMITS = {
    "infinity": math.inf,
    "minus": -math.inf,
    "zero": 0.0,
    "flushed": FLUSHED,
    "largest": FLOAT16.largest,
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """The scalars of one value: its largest element, its smallest, and sums."""

    high: str
    low: str
    sums: tuple[str, ...]


class Builder:
    """Makes nodes with names that begin with `prefix`, for a model of an opset."""

    def __init__(self, prefix: str, opset: int) -> None:
        self._prefix = prefix
        self._opset = opset
        self._made = 0

    def name(self) -> str:
        """A new name of a value."""
        self._made += 1
        return f"{self._prefix}{self._made}"

    def limits(self) -> list[onnx.NodeProto]:
        """The constants that the nodes read, for the start of the main graph."""
        return [constant(self._limit(name), number) for name, number in _LIMITS.items()]

    def _limit(self, name: str) -> str:
        return f"{self._prefix}_{name}"

    def add(self, nodes: list[onnx.NodeProto], operator: str, *inputs: str, **attributes: Any) -> str:
        """Appends a node to `nodes`, and returns the name of its output."""
        output = self.name()
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def extremes(self, nodes: list[onnx.NodeProto], value: str) -> Numbers:
        """Appends what reduces a value to its extremes."""
        high, low = (self.add(nodes, operator, value, keepdims=0) for operator in ("ReduceMax", "ReduceMin"))
        return Numbers(high, low, ())

    def summed(self, nodes: list[onnx.NodeProto], value: str) -> Numbers:
        """The same, and a sum: it is NaN if an element is."""
        found = self.extremes(nodes, value)
        return replace(found, sums=(self.add(nodes, "ReduceSum", value, keepdims=0),))

    def counted(self, nodes: list[onnx.NodeProto], value: str) -> Numbers:
        """Appends what reduces a value all of which float16 holds to its extremes, and to counts.

        The sums are: the number of elements, and of those that float16 rounds to 0; last the sum, which is
        NaN if an element is.
        """
        counts = self._counts(nodes, value, self.add(nodes, "Abs", value))
        found = self.summed(nodes, value)
        return replace(found, sums=(*counts, *found.sums))

    def separated(self, nodes: list[onnx.NodeProto], value: str) -> Numbers:
        """The same of any value, with the extremes of its finite elements, which takes twice as long.

        Before the sum are the numbers of elements that are not finite, and of the finite ones above the
        largest number of float16. Each is counted by itself: a difference of large numbers would be inexact
        in float32.
        """
        magnitude = self.add(nodes, "Abs", value)
        counts = self._counts(nodes, value, magnitude)
        is_finite = self.add(nodes, "Less", magnitude, self._limit("infinity"))  # which NaN is not
        above = self.add(nodes, "Greater", magnitude, self._limit("largest"))
        flags = (self.add(nodes, "Not", is_finite), self.add(nodes, "And", above, is_finite))
        lost, large = (self._count(nodes, each) for each in flags)
        chosen = [
            self.add(nodes, "Where", is_finite, value, self._limit(fill)) for fill in ("minus", "infinity")
        ]
        high, low = (
            self.add(nodes, operator, finite, keepdims=0)
            for operator, finite in zip(("ReduceMax", "ReduceMin"), chosen, strict=True)
        )
        return Numbers(high, low, (*counts, lost, large, self.add(nodes, "ReduceSum", value, keepdims=0)))

    def _counts(self, nodes: list[onnx.NodeProto], value: str, magnitude: str) -> tuple[str, str]:
        """Appends what counts the elements of a value, and those that float16 rounds to 0."""
        nonzero, visible = (
            self.add(nodes, "Greater", magnitude, self._limit(at)) for at in ("zero", "flushed")
        )
        flushed = self._count(nodes, self.add(nodes, "Xor", nonzero, visible))
        return self._as_float(nodes, self.add(nodes, "Size", value)), flushed

    def _count(self, nodes: list[onnx.NodeProto], flags: str) -> str:
        return self.add(nodes, "ReduceSum", self._as_float(nodes, flags), keepdims=0)

    def _as_float(self, nodes: list[onnx.NodeProto], value: str) -> str:
        return self.add(nodes, "Cast", value, to=TensorProto.FLOAT)

    def as_float(self, nodes: list[onnx.NodeProto], value: str, dtype: int) -> str:
        """A value in float32: itself where it is."""
        return value if dtype == TensorProto.FLOAT else self._as_float(nodes, value)

    def packed(self, nodes: list[onnx.NodeProto], scalars: Sequence[str], vectors: Iterable[str]) -> str:
        """Appends what makes one vector of scalars and vectors."""
        parts = [*self._of_scalars(nodes, scalars), *vectors]
        if not parts:
            nodes.append(constant(self.name(), ()))
            return nodes[-1].output[0]
        return parts[0] if len(parts) == 1 else self.add(nodes, "Concat", *parts, axis=0)

    def _of_scalars(self, nodes: list[onnx.NodeProto], scalars: Sequence[str]) -> Sequence[str]:
        if not scalars:
            return ()
        if self._opset < _SINCE_SEQUENCES:
            return [self.add(nodes, "Unsqueeze", scalar, axes=[0]) for scalar in scalars]
        several = self.add(nodes, "SequenceConstruct", *scalars)
        return (self.add(nodes, "ConcatFromSequence", several, axis=0, new_axis=1),)


def constant(name: str, array: Any) -> onnx.NodeProto:
    """A node with an array of floats."""
    return helper.make_node(
        "Constant", [], [name], value=numpy_helper.from_array(np.asarray(array, np.float32))
    )
