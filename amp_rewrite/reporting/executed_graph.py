"""The graph that onnxruntime executes, as drawn in the HTML report, with the origins of its boxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.onnx_types import schema
from amp_rewrite.placement import saved_graph
from amp_rewrite.placement.differences import Comparison
from amp_rewrite.placement.placing import Execution
from amp_rewrite.placement.saved_graph import FULL, HALVES, Executed
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.reporting import drawn_graph
from amp_rewrite.reporting.drawn_graph import Box, DrawnGraph, Shade


@dataclass(frozen=True, slots=True)
class Origin:
    """A node of the result; `box` is its box among the planned ones, None where it has none."""

    operator: str
    name: str
    box: int | None


@dataclass(frozen=True, slots=True)
class ExecutedNode:
    """The facts about an executed node beside its box.

    It stands for `origins`, none where onnxruntime inserted it; `is_fused` is True where its operator differs
    from the first origin's. `why_cpu` is the reason for the CPU provider, empty where it is on another.
    """

    origins: tuple[Origin, ...] = ()
    is_fused: bool = False
    why_cpu: str = ""


@dataclass(frozen=True, slots=True)
class ExecutedGraph:
    """The drawn graph, and for each of its boxes its node, None for an input or output."""

    drawn: DrawnGraph
    nodes: tuple[ExecutedNode | None, ...]


def build(execution: Execution, result: ir.Model, plan_boxes: Iterable[Box]) -> ExecutedGraph | None:
    """Return the executed graph of a result with these `plan_boxes`; None where it does not load."""
    graph = execution.graph
    if graph is None:
        return None
    origins = saved_graph.find_origins(graph, result)
    boxes = dict(_by_node(plan_boxes))
    executed_drawing, nodes = drawn_graph.undecided(graph.model.graph, graph.types)

    def describe(node: ir.Node) -> ExecutedNode:
        stands_for = tuple(_origin(one, boxes) for one in origins[node])
        why = execution.on_cpu.get(node)
        return ExecutedNode(stands_for, saved_graph.is_fused(node, origins[node]), why.value if why else "")

    def shaded(box: Box, node: ir.Node | None) -> Box:
        if node is None:
            return box
        executed = graph.executed(node)
        return replace(box, operator=executed.operator, shade=_shade(executed))

    return ExecutedGraph(
        replace(executed_drawing, boxes=tuple(map(shaded, executed_drawing.boxes, nodes))),
        tuple(None if node is None else describe(node) for node in nodes),
    )


@dataclass(frozen=True, slots=True)
class PlacementView:
    """The placement of a result in the HTML report; `executed` is None where it does not load."""

    compared: Comparison
    executed: ExecutedGraph | None


_Key = tuple[str, str]
"""Operator and name of a node; for an added Cast, the name that it gets in the result."""


def _by_node(boxes: Iterable[Box]) -> Iterator[tuple[_Key, int]]:
    for index, box in enumerate(boxes):
        if box.shade is not Shade.BORDER:
            yield (box.operator, box.name), index
        if box.shade is Shade.CAST:
            yield ("Cast", f"{box.inputs[0].name}__{box.name.rpartition(' to ')[2]}"), index


def _origin(node: ir.Node, boxes: Mapping[_Key, int]) -> Origin:
    operator, name = schema.written(node.domain, node.op_type), pinned_as(node)
    return Origin(operator, name, boxes.get((operator, name)))


def _shade(executed: Executed) -> Shade:
    types = {*executed.inputs, *executed.outputs}
    if executed.operator == "Cast" and FULL in types and not types.isdisjoint(HALVES):
        return Shade.CAST
    if executed.precision in HALVES:
        return Shade.HALF
    return Shade.FULL if executed.precision == FULL else Shade.OTHER
