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
from amp_rewrite.model.constants import stored_as
from amp_rewrite.policy.evidence import Authority, Evidence, Reason

_MOST = 64
"""The most sums that are looked at for one difference."""


def check(graph: UnitGraph, stored: Container[ir.Value]) -> Mapping[int, Evidence]:
    """The units that add to a grid, and take it away again."""
    derived = Derived(stored)
    held = {
        node
        for unit in graph.by_operator.get("Sub", ())
        if unit not in graph.spelled
        for node in _way(graph.units[unit].node, derived.has)
    }
    evidence = Evidence(Authority.RANGE, Reason.DISPLACEMENT)
    return {unit.index: evidence for unit in graph.units if unit.node in held} if held else {}


def _way(difference: ir.Node, is_derived: Callable[[ir.Value], bool]) -> tuple[ir.Node, ...]:
    """The nodes from the first sum with a grid to the difference that takes it away; none without one."""
    given = patterns.operands(difference)
    if not patterns.is_default(difference, "Sub") or len(given) != 2:
        return ()
    grid = patterns.origin(given[1])
    if not (grid.is_graph_input() or is_derived(grid)) or patterns.scalar(grid) is not None:
        return ()
    behind: dict[ir.Node, tuple[ir.Node, ...]] = {}
    todo = [(given[0], (difference,))]
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
    return one.shape == other.shape and np.array_equal(one.numpy(), other.numpy())
