"""Norms that are written out and run as one kernel: which units launch none of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs import fused_norms


@dataclass(frozen=True, slots=True)
class FusedIdioms:
    """The units of written-out norms, as the runtime fuses them, with the Casts in front of and within them.

    `inside` are units in float32 before a weight: what they read may be of either type, and what they make
    is not written. `absorbed` are all units that launch no kernel of their own; the weight stands for them.
    """

    inside: frozenset[int]
    absorbed: frozenset[int]


def find(graph: UnitGraph) -> FusedIdioms:
    """The norms of a model that have a weight and run as one kernel."""
    inside: set[ir.Node] = set()
    biases: set[ir.Node] = set()
    for result, spelled in graph.spelled.items():
        weight = _weight(graph, result) if spelled.part is Part.RESULT else None
        norm = (
            fused_norms.of(graph.units[result].node, graph.units[weight].node) if weight is not None else None
        )
        if norm is not None:
            inside.update(norm.inner)
            biases.update([norm.bias] if norm.bias is not None else [])
    within = (
        frozenset(unit.index for unit in graph.units if unit.node in inside) if inside else frozenset[int]()
    )
    behind = (unit.index for unit in graph.units if unit.node in biases) if biases else ()
    return FusedIdioms(within, within.union(behind))


def together(graph: UnitGraph) -> Iterator[tuple[int, int]]:
    """Pairs of units of which the first may be half only where the second is: weights and data."""
    for alike in graph.alike:
        for weight in alike.weights:
            for other in (alike.producer, *alike.beside):
                if other is not None:
                    yield weight, other
            if alike.producer is not None:
                yield alike.producer, weight


def _weight(graph: UnitGraph, result: int) -> int | None:
    """The weight behind a norm, which reads its result."""
    return next((unit for unit in graph.successors[result] if _is(graph, unit, Part.OUTER)), None)


def _is(graph: UnitGraph, unit: int, part: Part) -> bool:
    return unit in graph.spelled and graph.spelled[unit].part is part
