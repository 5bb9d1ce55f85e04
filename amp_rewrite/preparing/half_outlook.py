"""What of a model will likely be half at an opset, and at what price in Casts: an estimate.

Half goes from the nodes on the list `allow` through all that can be half, as the rules `between`, `follow`
and `spread` have it; denied operators and findings are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model import constants
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.preparing import half_ports
from amp_rewrite.preparing.half_ports import HalfPorts


@dataclass(frozen=True, slots=True)
class Outlook:
    """The nodes that will likely be half, how many Casts stand between them and the others, and how many of
    them are a Clip that has to be written as two nodes for it (clip_as_max_min).
    """

    half: frozenset[ir.Node]
    casts: int
    doubled: int

    @property
    def gain(self) -> int:
        """How many nodes more are half than there are added."""
        return len(self.half) - self.casts - self.doubled


def of(nodes: Iterable[ir.Node], types: Types, ports: HalfPorts, version_of: Callable[[str], int]) -> Outlook:
    """The outlook of these nodes at the opsets that `version_of` gives by domain; linear in their ports."""
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
    touched = {value for node in half for value in around[node]}
    casts = sum(_casts(value, half, around) for value in touched)
    doubled = sum(map(half_ports.is_clip, half)) if max_and_min else 0
    return Outlook(frozenset(half), casts, doubled)


_CLIPPED = (0, ~0)
"""The ports of a Clip that are half once it is a Max and a Min; its bounds are stored, as a rule."""


_Around = dict[ir.Node, frozenset[ir.Value]]
"""The float32 values at the ports of each node that can be half."""


def _beside(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that a value connects, unless it is stored."""
    producer = value.producer()
    if producer is not None and producer.op_type != "Constant":
        yield producer
        yield from value.consumers()


def _casts(value: ir.Value, half: set[ir.Node], around: _Around) -> int:
    """How many Casts a value needs, from float32 or to it; none where it is stored."""
    if constants.stored_as(value) is not None:
        return 0
    producer = value.producer()
    is_made_half = producer in half and value in around[producer]
    read_half = [node in half and value in around[node] for node in value.consumers()]
    if is_made_half:
        return int(value.is_graph_output() or not all(read_half))
    return int(any(read_half))
