"""What is left of data without their mean, as nodes, and whether two values are the same data.

d = x - mean(x)
d = x - expand(reshape(mean(v)))      with v = reshape(x), whose last axis has what is averaged
d = x - reshape(sum(x)) / n           PyTorch's std_mean and var_mean, as its newer exporter writes them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis import long_sums
from amp_rewrite.analysis.idioms import patterns

_LONGEST = 6
"""The most nodes that shape a value on its way."""


class Core(NamedTuple):
    """Data, and the nodes that take their mean from them (none where nothing is taken)."""

    data: ir.Value
    centring: tuple[ir.Node, ...] = ()


class Shared(NamedTuple):
    """The data that two values are, and the nodes that shape them on the way to either."""

    data: ir.Value
    shaping: tuple[ir.Node, ...]


def core_of(value: ir.Value) -> Core:
    """The data of which a value is what is left without their mean; else the value itself."""
    node = value.producer()
    if node is None or not patterns.is_default(node, "Sub") or len(node.inputs) != 2:
        return Core(value)
    data, mean = node.inputs[0], _shaped_mean(node.inputs[1])
    shared = shared_data(mean[-1].inputs[0], data) if mean else None
    return Core(shared.data, (*shared.shaping, *reversed(mean), node)) if shared is not None else Core(value)


def mean_of(value: ir.Value | None) -> ir.Node | None:
    """The ReduceMean that makes a value."""
    node = value.producer() if value is not None else None
    return node if node is not None and patterns.is_default(node, "ReduceMean") else None


def _shaped_mean(value: ir.Value | None) -> tuple[ir.Node, ...]:
    """The nodes that shape a mean, the last one first, and the one that takes it, or the sum that one of
    them divides by how much it adds up; none for others.
    """
    nodes: list[ir.Node] = []
    while (node := value.producer() if value is not None else None) is not None and len(nodes) < _LONGEST:
        nodes.append(node)
        if patterns.is_default(node, "ReduceMean", "ReduceSum"):
            return tuple(nodes) if _is_mean(node, nodes) else ()
        if not patterns.is_default(node, *_SHAPE_A_MEAN):
            return ()
        value = node.inputs[0]
    return ()


_SHAPE_A_MEAN = ("Div", "Expand", "Reshape", "Squeeze", "Unsqueeze")


def _is_mean(reduction: ir.Node, nodes: Iterable[ir.Node]) -> bool:
    """Whether a reduction is a mean, or one of these nodes divides the sum by the number of its terms."""
    shares = [node for node in nodes if node.op_type == "Div"]
    if reduction.op_type == "ReduceMean":
        return not shares
    return len(shares) == 1 and _is_count(shares[0].inputs[1], reduction)


def _is_count(value: ir.Value | None, reduction: ir.Node) -> bool:
    number = patterns.scalar(value)
    return patterns.is_of_sizes(value) if number is None else number == long_sums.terms(reduction)


def shared_data(first: ir.Value | None, second: ir.Value | None) -> Shared | None:
    """The data that both values are, up to Casts, Identities and Reshapes; None where they differ."""
    if first is None or second is None:
        return None
    one, other = list(_sources(first)), list(_sources(second))
    data = next((value for value in one if value in other), None)
    if data is None:
        return None
    between = (*one[: one.index(data)], *other[: other.index(data)])
    makers = (patterns.maker(value, "Reshape") for value in dict.fromkeys(between))
    return Shared(data, tuple(dict.fromkeys(node for node in makers if node is not None)))


def _sources(value: ir.Value) -> Iterator[ir.Value]:
    """A value, and what Casts, Identities and Reshapes made it of, one behind the other."""
    for _ in range(_LONGEST):
        yield value
        node = value.producer()
        if node is None or not patterns.is_default(node, "Cast", "Identity", "Reshape"):
            return
        if node.inputs[0] is None:
            return
        value = node.inputs[0]
