"""How what was reduced inside a body reaches the graph around it: through new outputs of If, Loop and Scan.

The branch of an If that does not run gives what changes nothing; a Loop and a Scan carry what they have from
one iteration to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from amp_rewrite.running.value_reductions import constant

NewName = Callable[[], str]

_NEUTRAL = (-math.inf, math.inf, 0.0)
_MERGED_BY = ("Max", "Min", "Add")


@dataclass(frozen=True, slots=True)
class Vectors:
    """The names and sizes of three vectors: the largest elements of values, the smallest, and sums."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def renamed(self, new: NewName) -> Vectors:
        """Vectors of the same sizes with new names."""
        return Vectors(tuple(new() for _ in self.names), self.sizes)

    @property
    def infos(self) -> list[onnx.ValueInfoProto]:
        """Their declarations."""
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [size])
            for name, size in zip(self.names, self.sizes, strict=True)
        ]

    def neutral(self) -> list[onnx.NodeProto]:
        """Constants for vectors of which nothing was reduced."""
        filled = (np.full(size, fill, np.float32) for size, fill in zip(self.sizes, _NEUTRAL, strict=True))
        return [constant(name, array) for name, array in zip(self.names, filled, strict=True)]


@dataclass(frozen=True, slots=True)
class HandedOut:
    """The vectors of a body in the graph around it, and constants that must stand before the node there."""

    before: Sequence[onnx.NodeProto]
    vectors: Vectors


def of_if(node: onnx.NodeProto, branch: onnx.GraphProto, found: Vectors, new: NewName) -> HandedOut:
    """Adds what was reduced in one branch to the outputs of an If."""
    branches = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    _pad(node.output, len(branch.output))
    for each in branches:
        leaves = found
        if each is not branch:
            leaves = found.renamed(new)
            each.node.extend(leaves.neutral())
        each.output.extend(leaves.infos)
    outer = found.renamed(new)
    node.output.extend(outer.names)
    return HandedOut((), outer)


def of_loop(node: onnx.NodeProto, body: onnx.GraphProto, found: Vectors, new: NewName) -> HandedOut:
    """Carries what was reduced in the body of a Loop; its first two inputs are no carried values."""
    _pad(node.input, 2)
    return _carried(node, body, found, new, carried=len(node.input) - 2, first=2)


def of_scan(node: onnx.NodeProto, body: onnx.GraphProto, found: Vectors, new: NewName) -> HandedOut:
    """Carries what was reduced in the body of a Scan, as states before the inputs that are scanned."""
    scanned = next(attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs")
    return _carried(node, body, found, new, carried=len(node.input) - scanned, first=0)


def _carried(
    node: onnx.NodeProto, body: onnx.GraphProto, found: Vectors, new: NewName, *, carried: int, first: int
) -> HandedOut:
    """Adds three carried values behind the `carried` ones; those begin at input `first` of node and body."""
    starts, entering, leaving = found.renamed(new), found.renamed(new), found.renamed(new)
    outer = found.renamed(new)
    _pad(node.output, carried)
    _insert(node.input, first + carried, starts.names)
    _insert(body.input, first + carried, entering.infos)
    _insert(body.output, (1 if first else 0) + carried, leaving.infos)
    _insert(node.output, carried, outer.names)
    merged = zip(_MERGED_BY, entering.names, found.names, leaving.names, strict=True)
    body.node.extend(helper.make_node(op, [before, here], [after]) for op, before, here, after in merged)
    return HandedOut(starts.neutral(), outer)


def _pad(names: MutableSequence[str], count: int) -> None:
    """Writes out trailing names that are left out."""
    names.extend("" for _ in range(count - len(names)))


def _insert(items: MutableSequence[Any], at: int, new: Iterable[Any]) -> None:
    """Inserts into a field of a message, which copies what it takes."""
    rest = list(items[at:])
    del items[at:]
    items.extend(new)
    items.extend(rest)
