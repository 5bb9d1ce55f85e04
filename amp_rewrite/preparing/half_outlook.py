"""What of a model will likely be half at an opset, and at what price in Casts: an estimate.

Half goes from the nodes on the list `allow` through all that can be half, as the rules `between`, `follow`
and `spread` have it; denied operators and findings are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.onnx_types import control_flow
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.preparing import half_ports
from amp_rewrite.preparing.half_ports import HalfPorts


@dataclass(frozen=True, slots=True)
class Outlook:
    """The nodes that will likely be half, and by how many the ones that compute exceed those that are added:
    Casts, and one for each Clip that has to be two nodes (clip_as_max_min).
    """

    half: frozenset[ir.Node]
    gain: int


def of(nodes: Iterable[ir.Node], types: Types, ports: HalfPorts, version_of: Callable[[str], int]) -> Outlook:
    """The outlook of the nodes of a model, in order, at the opsets that `version_of` gives by domain; linear
    in their ports. What depends on stored values alone is no node: it is computed once.
    """
    nodes, stored = _split(nodes)
    max_and_min = ports.prefers_max_and_min(version_of(""))

    def float32(node: ir.Node) -> frozenset[ir.Value]:
        clipped = max_and_min and half_ports.is_clip(node)
        found = _CLIPPED if clipped else ports.of(half_ports.call(node, version_of(node.domain)))
        return frozenset(half_ports.float32_at(node, found, types))

    around = {node: float32(node) for node in nodes}
    waiting = [node for node, values in around.items() if values and ports.starts(node)]
    half = set(waiting)
    while waiting:
        for value in around[waiting.pop()]:
            fresh = [node for node in _beside(value) if value in around.get(node, ()) and node not in half]
            half.update(fresh)
            waiting.extend(fresh)
    touched = {value for node in half for value in around[node]} - stored
    casts = sum(_casts(value, half, around) for value in touched)
    doubled = sum(map(half_ports.is_clip, half)) if max_and_min else 0
    return Outlook(frozenset(half), sum(map(ports.computes, half)) - casts - doubled)


def _split(nodes: Iterable[ir.Node]) -> tuple[list[ir.Node], set[ir.Value]]:
    """The nodes that depend on more than stored values, and the values that do not."""
    found: list[ir.Node] = []
    stored: set[ir.Value] = set()
    for node in nodes:
        read = [value for value in node.inputs if value is not None]
        known = all(value in stored or value.const_value is not None for value in read)
        if known and (read or node.op_type == "Constant") and not control_flow.may_have_bodies(node):
            stored.update(node.outputs)
        else:
            found.append(node)
    return found, stored


_CLIPPED = (0, ~0)
"""The ports of a Clip that are half once it is a Max and a Min; its bounds are stored, as a rule."""


_Around = dict[ir.Node, frozenset[ir.Value]]
"""The float32 values at the ports of each node that can be half."""


def _beside(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that a value connects, unless it is stored or comes from outside."""
    producer = value.producer()
    if producer is not None:
        yield producer
        yield from value.consumers()


def _casts(value: ir.Value, half: set[ir.Node], around: _Around) -> int:
    """How many Casts a value needs, from float32 or to it; none where it is stored."""
    if value.const_value is not None:
        return 0
    producer = value.producer()
    is_made_half = producer in half and value in around[producer]
    read_half = [node in half and value in around[node] for node in value.consumers()]
    if is_made_half:
        return int(value.is_graph_output() or not all(read_half))
    return int(any(read_half))
