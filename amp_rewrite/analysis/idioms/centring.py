"""What is left of data without their mean, as nodes, and whether two values are the same data.

d = x - mean(x)
d = x - expand(reshape(mean(v)))      with v = reshape(x), whose last axis has what is averaged
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

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
    """The nodes that shape a mean, the last one first, and the one that takes it; none for others."""
    nodes: list[ir.Node] = []
    while (mean := mean_of(value)) is None:
        node = value.producer() if value is not None else None
        if node is None or not patterns.is_default(node, *_SHAPE_A_MEAN) or len(nodes) == _LONGEST:
            return ()
        nodes.append(node)
        value = node.inputs[0]
    return (*nodes, mean)


_SHAPE_A_MEAN = ("Expand", "Reshape", "Squeeze", "Unsqueeze")


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
