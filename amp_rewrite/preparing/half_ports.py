"""The ports of a node that could be half at an opset, by schema, kernels and the shipped list.

They do not depend on placement, and are the same for all nodes of an operator with as many ports.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.model import patterns, traversal
from amp_rewrite.model.dataflow import varying_values
from amp_rewrite.model.patterns import DEQUANTIZE, QUANTIZE
from amp_rewrite.model.traversal import GraphNodes
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.entries import Kind, Operator
from amp_rewrite.policy.options import SHIPPED_FOR, Form


class KernelKey(NamedTuple):
    """The key of a kernel lookup: an operator, the version of its domain, and the number of ports."""

    domain: str
    operator: str
    version: int
    inputs: int
    outputs: int


def call(node: ir.Node, version: int) -> KernelKey:
    """Return the key of a node."""
    return KernelKey(node.domain, node.op_type, version, len(node.inputs), len(node.outputs))


Ports = frozenset[int]
"""Ports of a node: inputs from 0 up, outputs from -1 down."""


class HalfPorts:
    """The nodes and ports that can be half, for a half type and a target."""

    def __init__(self, form: Form) -> None:
        self._half, self._target = form.half, form.target
        overrides = dict.fromkeys(_BORDERS.intersection(form.kept_operators), Kind.ALLOW)
        self._kinds = _kinds(form.half.name) | overrides
        self._keeps_regions = not (overrides or form.target.fuses_half_scales)
        self.of = functools.cache(self._of)

    def find_float32_nodes(self, nodes: Iterable[ir.Node]) -> frozenset[ir.Node]:
        """Return the nodes that stay float32 since the target fuses them with float32 scales alone."""
        regions = patterns.find_regions(nodes if self._keeps_regions else ())
        return regions.reads | regions.gives

    def starts(self, node: ir.Node) -> bool:
        """Return whether the operator of a node is on the list `allow`: without one, nothing becomes half."""
        return self._kinds.get((node.domain, node.op_type)) is Kind.ALLOW

    def computes(self, node: ir.Node) -> bool:
        """Return whether half makes a node faster: those on the list `clear` follow their neighbours."""
        return self._kinds.get((node.domain, node.op_type)) in (Kind.ALLOW, Kind.INFER)

    def prefers_max_and_min(self, version: int) -> bool:
        """Return whether Max and Min can be half at an opset, and Clip cannot."""
        calls = (
            KernelKey("", name, version, inputs, 1) for name, inputs in (("Clip", 1), ("Max", 2), ("Min", 2))
        )
        clip, *others = map(self.of, calls)
        return not clip and all(others)

    def _of(self, call: KernelKey) -> Ports:
        """Return the ports that can be half; none for an operator that the shipped list keeps in float32."""
        signature = schema.find(call.domain, call.operator, call.version)
        layout = schema.layout(call.domain, call.operator, call.version, call.inputs, call.outputs)
        if signature is None or layout is None or (call.domain, call.operator) not in self._kinds:
            return frozenset()
        if not call.domain and call.version < schema.first_opset_with(self._half):
            return frozenset()
        support = self._target.support(call.domain, call.operator, signature, self._half.name)
        groups = (
            group
            for group in layout
            if self._half.tensor in group.allowed
            and (support is None or support.has(group.var.name, self._half.name))
        )
        return frozenset(p for group in groups for p in (*group.inputs, *(~i for i in group.outputs)))


_BORDERS: frozenset[Operator] = frozenset([("", DEQUANTIZE), ("", QUANTIZE)])
"""Operators that have half from an opset on: moving them to another list requests that."""


@functools.cache
def _kinds(half: str) -> dict[Operator, Kind]:
    lists = operator_lists.load(SHIPPED_FOR[half])
    can = (Kind.ALLOW, Kind.INFER, Kind.CLEAR)
    return {operator: entry.kind for operator, entry in lists.entries.items() if entry.kind in can}


def is_clip(node: ir.Node) -> bool:
    """Return whether a node is a Clip with an input and an output."""
    return node.op_type == "Clip" and not node.domain and bool(node.inputs) and len(node.outputs) == 1


FLOAT32 = element_types.tensor(ir.DataType.FLOAT)


# An estimate of the nodes that will be half at an opset, and of the Casts that they cost. Half spreads from
# the nodes on the list `allow` through all that can be half, by the rules `between`, `follow` and `spread`;
# denied operators and findings are ignored.


@dataclass(frozen=True, slots=True)
class Outlook:
    """The nodes that will likely be half, and the gain: the number of those that compute, less added nodes.

    Added are Casts, and one node for each Clip that is split in two (operator_forms).
    """

    half: frozenset[ir.Node]
    gain: int


def predict_outlook(
    graph_nodes: GraphNodes, types: Types, ports: HalfPorts, version_of: Callable[[str], int]
) -> Outlook:
    """Return the outlook of a model's nodes at the opsets that `version_of` gives by domain.

    Takes time linear in their ports. Constant nodes do not count: they are computed once.
    """
    varying = varying_values(graph_nodes, _is_computed)
    nodes = [node for inner in graph_nodes.values() for node in inner if not varying.isdisjoint(node.outputs)]
    float32_nodes = ports.find_float32_nodes(nodes)
    max_and_min = ports.prefers_max_and_min(version_of(""))

    def float32(node: ir.Node) -> frozenset[ir.Value]:
        clipped = max_and_min and is_clip(node)
        port_kinds = _CLIPPED if clipped else ports.of(call(node, version_of(node.domain)))
        values = (node.inputs[port] if port >= 0 else node.outputs[~port] for port in port_kinds)
        return frozenset(value for value in values if value is not None and types.get(value) == FLOAT32)

    around = {node: float32(node) for node in nodes if node not in float32_nodes}

    def beside(node: ir.Node) -> Iterator[ir.Node]:
        for value in around[node]:
            yield from (other for other in _beside(value) if value in around.get(other, ()))

    starts = (node for node, values in around.items() if values and ports.starts(node))
    half = set(traversal.reach(starts, beside))
    touched = {value for node in half for value in around[node] if value in varying}
    casts = sum(_casts(value, half, around) for value in touched)
    doubled = sum(map(is_clip, half)) if max_and_min else 0
    return Outlook(frozenset(half), sum(map(ports.computes, half)) - casts - doubled)


def _is_computed(node: ir.Node) -> bool:
    """Return whether a node is computed in every run, whatever it reads: also one that dequantises weights,
    which runtimes leave as they are stored.
    """
    return control_flow.may_have_bodies(node) or node.op_type == DEQUANTIZE


_CLIPPED = (0, ~0)
"""The ports of a Clip that are half once it is a Max and a Min; its bounds are usually constants."""


_Around = dict[ir.Node, frozenset[ir.Value]]
"""The float32 values at the ports of each node that can be half."""


def _beside(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the producer and consumers of a value, unless it is a constant or an input of a graph."""
    producer = value.producer()
    if producer is not None:
        yield producer
        yield from value.consumers()


def _casts(value: ir.Value, half: set[ir.Node], around: _Around) -> int:
    """Return the number of Casts that a value needs, from float32 or to it."""
    producer = value.producer()
    is_made_half = producer in half and value in around[producer]
    read_half = [node in half and value in around[node] for node in value.consumers()]
    if is_made_half:
        return int(value.is_graph_output() or not all(read_half))
    return int(any(read_half))
