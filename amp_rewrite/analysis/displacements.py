"""Displacements: what is added to a grid, and left when the grid is taken away again.

    flow = (grid + flow) - grid             optical flow, also over several steps: grid + d1 + d2 - grid

At 500 half has steps of 1/4, and that is all that is left of a flow. A grid is an input of the model, stored,
or computed of sizes; features that are taken from each other are no displacements.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.derived import Derived
from amp_rewrite.analysis.idioms import patterns
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_MOST = 64
"""The most sums that are looked at for one difference."""


def check(graph: UnitGraph, stored: Container[ir.Value]) -> Mapping[int, Evidence]:
    """The units that add to a grid, and take it away again."""
    derived = Derived(stored)
    subtractions = (
        graph.units[unit].node for unit in graph.by_operator.get("Sub", ()) if unit not in graph.spelled
    )
    grids = {node: grid for node in subtractions if (grid := _grid(node, derived.has)) is not None}
    may_be_added = _added(graph) if grids else frozenset()
    held = {
        node
        for difference, grid in grids.items()
        if _signs(grid) & may_be_added
        for node in _way(difference, grid, derived.has)
    }
    evidence = Evidence(Authority.RANGE, Reason.DISPLACEMENT)
    return dict.fromkeys(graph.of_nodes(held), evidence)


def _grid(difference: ir.Node, is_derived: Callable[[ir.Value], bool]) -> ir.Value | None:
    """The grid that a node takes away; None for another node."""
    given = patterns.operands(difference)
    if not patterns.is_default(difference, "Sub") or len(given) != 2:
        return None
    grid = patterns.origin(given[1])
    is_grid = grid.is_graph_input() or is_derived(grid)
    return grid if is_grid and patterns.scalar(grid) is None else None


def _added(graph: UnitGraph) -> frozenset[object]:
    """What tells which values any sum of a model adds up: most grids that are taken away are in none."""
    sums = (graph.units[unit].node for unit in graph.by_operator.get("Add", ()))
    terms = {patterns.origin(term) for node in sums for term in patterns.operands(node)}
    return frozenset(sign for term in terms for sign in _signs(term))


def _signs(value: ir.Value) -> frozenset[object]:
    """What a value has in common with all that is the same: itself, or the shape of a table."""
    tensor = stored_as(value)
    if tensor is not None:
        return frozenset((dims(tensor),))
    return frozenset((value,)) if value.producer() is None else frozenset((value, None))


def _way(difference: ir.Node, grid: ir.Value, is_derived: Callable[[ir.Value], bool]) -> tuple[ir.Node, ...]:
    """The nodes from the first sum with a grid to the difference that takes it away; none without one."""
    behind: dict[ir.Node, tuple[ir.Node, ...]] = {}
    todo = [(patterns.operands(difference)[0], (difference,))]
    while todo and len(behind) < _MOST:
        value, way = todo.pop()
        node = patterns.maker(value, "Add")
        if node is None or node in behind:
            continue
        behind[node] = (node, *way)
        terms = [patterns.origin(term) for term in patterns.operands(node)]
        if any(_is_same(term, grid, is_derived) for term in terms):
            return behind[node]
        todo += [(term, behind[node]) for term in terms]
    return ()


def _is_same(value: ir.Value, grid: ir.Value, is_derived: Callable[[ir.Value], bool]) -> bool:
    """Whether a value is the grid, holds the same numbers, or is computed of sizes as the grid is."""
    if value is grid:
        return True
    one, other = stored_as(value), stored_as(grid)
    if one is None or other is None:
        return one is other and is_derived(value) and is_derived(grid)
    return dims(one) == dims(other) and np.array_equal(numbers(one), numbers(other))
