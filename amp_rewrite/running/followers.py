"""Values whose extremes follow from those of another: outputs of Relu, and of Pads with zeros."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite.running.reducible_values import SAME_ELEMENTS

_SINCE_PAD_INPUTS = 11
_FILL = 2
"""The input of a Pad that is the number it adds."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A value with the elements of another, but 0 for those below where it is `cut`, and with zeros beside
    them where it is `padded`.
    """

    name: str
    cut: bool = False
    padded: bool = False

    @property
    def is_same(self) -> bool:
        """Whether it has the elements of the other, and nothing else."""
        return not (self.cut or self.padded)

    def ends(self, low: float, high: float) -> tuple[float, float]:
        """Its extremes, where those of the other value, which has an element, are these."""
        if self.cut:
            low, high = max(low, 0.0), max(high, 0.0)
        return (min(low, 0.0), max(high, 0.0)) if self.padded else (low, high)


def names(followers: Iterable[Follower]) -> list[str]:
    """Their names."""
    return [follower.name for follower in followers]


Stored = Mapping[str, TensorProto]
"""Tensors that a model stores, which no run is given, by name."""


def stored(graph: onnx.GraphProto) -> Stored:
    """Those of a graph with their data beside them."""
    given = {entry.name for entry in graph.input}
    return {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.name not in given and tensor.data_location != TensorProto.EXTERNAL
    }


def of(node: onnx.NodeProto, known: Follower, opset: int, tensors: Stored) -> Follower | None:
    """What the output of a node is, which reads a value of which something is `known`; None for others."""
    name = node.output[0]
    if node.op_type in SAME_ELEMENTS:
        return replace(known, name=name)
    if node.op_type == "Relu":
        return replace(known, name=name, cut=True)
    return replace(known, name=name, padded=True) if adds_zeros(node, opset, tensors) else None


def adds_zeros(node: onnx.NodeProto, opset: int, tensors: Stored) -> bool:
    """Whether a node is a Pad that leaves out no element, and is known to add zeros."""
    if node.op_type != "Pad":
        return False
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if given.get("mode", b"constant") != b"constant":
        return False
    pads, fill = given.get("pads", ()), given.get("value", 0.0)
    if opset >= _SINCE_PAD_INPUTS:
        pads, fill = _elements(node.input[1], tensors), 0.0
        if len(node.input) > _FILL and node.input[_FILL]:
            fill = next(iter(_elements(node.input[_FILL], tensors)), None)
    return fill == 0 and min(pads, default=-1) >= 0 and max(pads) > 0


def _elements(name: str, tensors: Stored) -> Sequence[Any]:
    """The elements of a stored tensor; none of another."""
    return numpy_helper.to_array(tensors[name]).reshape(-1).tolist() if name in tensors else ()
