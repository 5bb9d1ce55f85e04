"""What stands in each graph of a drawing, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.rewriting.plan import PlannedCast


@dataclass(frozen=True, slots=True, eq=False)
class GraphOutput:
    """An output of a graph, by its position."""

    graph: ir.Graph
    port: int


Thing = ir.Node | ir.Value | PlannedCast | GraphOutput
"""What a box stands for: a node, an input, an added Cast, or an output."""


def with_titles(graph: ir.Graph, title: str) -> Iterator[tuple[ir.Graph, str]]:
    """A graph and its subgraphs, titled by attribute and node."""
    yield graph, title
    for node in graph:
        for number, body in enumerate(control_flow.bodies(node)):
            names = (a.name for a in node.attributes.values() if a.value is body)
            attribute = next(names, f"body {number + 1}")
            yield from with_titles(body, f"{attribute} of {node.op_type} {pinned_as(node)}".strip())


def in_order(graph: ir.Graph, casts: Sequence[PlannedCast]) -> list[Thing]:
    """The contents of a graph: nodes in order, inputs before their first use, Casts and outputs after
    their producer.
    """
    place = {node: i for i, node in enumerate(graph)}
    first = _first_uses(place)
    things: list[tuple[int, int, Thing]] = []
    things += ((i, 2, node) for node, i in place.items() if not is_constant(node))
    things += ((first.get(v, 0), 0, v) for v in graph.inputs if not v.is_initializer())
    for cast in casts:
        if graph_of(cast.value) is graph:
            producer = cast.value.producer()
            at, rank = (first.get(cast.value, 0), 1) if producer is None else (place[producer], 3)
            things.append((at, rank, cast))
    for port, value in enumerate(graph.outputs):
        producer = value.producer()
        at = len(place) if producer is None else place.get(producer, len(place))
        things.append((at, 4, GraphOutput(graph, port)))
    return [thing for *_, thing in sorted(things, key=lambda entry: entry[:2])]


def key(thing: Thing) -> object:
    """A key that tells planned Casts apart by identity: they compare by content."""
    return id(thing) if isinstance(thing, PlannedCast) else thing


def is_constant(node: ir.Node | None) -> bool:
    """Whether a node is a Constant, which has no box: it is shown where it is read."""
    return node is not None and node.op_type == "Constant" and not node.domain


def _first_uses(place: Mapping[ir.Node, int]) -> dict[ir.Value, int]:
    first: dict[ir.Value, int] = {}
    for node, position in place.items():
        for value in filter(None, node.inputs):
            first.setdefault(value, position)
    return first
