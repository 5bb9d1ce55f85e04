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
        """Appends what reduces a value to the extremes of its finite elements, and to counts.

        The sums are: the number of elements, of those that are not finite, of those that float16 rounds to 0,
        and of the finite ones above its largest number; last the sum, which is NaN if an element is. Each is
        counted by itself: a difference of large numbers would be inexact in float32. What only a value that
        leaves float16 needs is in a branch: to choose elements takes as long as all else together.
        """
        magnitude = self.add(nodes, "Abs", value)
        nonzero, visible = (
            self.add(nodes, "Greater", magnitude, self._limit(at)) for at in ("zero", "flushed")
        )
        flushed = self._count(nodes, self.add(nodes, "Xor", nonzero, visible))
        size = self._as_float(nodes, self.add(nodes, "Size", value))
        found = self.summed(nodes, value)
        fits, names = self._fits(nodes, found), [self.name() for _ in range(4)]
        branches: dict[str, Any] = {
            "then_branch": self._all_fit(found),
            "else_branch": self._some_do_not(value, magnitude),
        }
        nodes.append(helper.make_node("If", [fits], names, **branches))
        high, low, lost, large = names
        return Numbers(high, low, (size, lost, flushed, large, *found.sums))

    def _fits(self, nodes: list[onnx.NodeProto], found: Numbers) -> str:
        """Appends what tells whether float16 holds all elements; not where their sum is not finite."""
        most = self.add(nodes, "Max", found.high, self.add(nodes, "Neg", found.low))
        beyond = self.add(nodes, "Greater", most, self._limit("largest"))
        size_of_sum = self.add(nodes, "Abs", *found.sums)
        is_finite = self.add(nodes, "Less", size_of_sum, self._limit("infinity"))  # which NaN is not
        return self.add(nodes, "And", self.add(nodes, "Not", beyond), is_finite)

    def _all_fit(self, found: Numbers) -> onnx.GraphProto:
        """A branch that gives the extremes as they are, and no element that is not finite or too large."""
        nodes = list[onnx.NodeProto]()
        zero = self._limit("zero")
        names = [self.add(nodes, "Identity", name) for name in (found.high, found.low, zero, zero)]
        return _branch(nodes, names)

    def _some_do_not(self, value: str, magnitude: str) -> onnx.GraphProto:
        """A branch that gives the extremes of finite elements, and counts the others and the large."""
        nodes = list[onnx.NodeProto]()
        is_finite = self.add(nodes, "Less", magnitude, self._limit("infinity"))
        above = self.add(nodes, "Greater", magnitude, self._limit("largest"))
        high, low = (
            self.add(
                nodes, operator, self.add(nodes, "Where", is_finite, value, self._limit(fill)), keepdims=0
            )
            for operator, fill in (("ReduceMax", "minus"), ("ReduceMin", "infinity"))
        )
        flags = (self.add(nodes, "Not", is_finite), self.add(nodes, "And", above, is_finite))
        return _branch(nodes, (high, low, *(self._count(nodes, each) for each in flags)))

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


def _branch(nodes: Sequence[onnx.NodeProto], scalars: Sequence[str]) -> onnx.GraphProto:
    """The body of an If that gives scalars."""
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in scalars]
    return helper.make_graph(nodes, "counted", [], outputs)


def constant(name: str, array: Any) -> onnx.NodeProto:
    """A node with an array of floats."""
    return helper.make_node(
        "Constant", [], [name], value=numpy_helper.from_array(np.asarray(array, np.float32))
    )
