"""Units whose float32 all comes from what is stored: rows of a table, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph, value_of
from amp_rewrite.model.traversal import graphs
from amp_rewrite.policy.operator_lists import Entry, Kind

_OPEN = (Kind.CLEAR, Kind.INFER)


def find(graph: UnitGraph, entries: Sequence[Entry]) -> frozenset[int]:
    """The CLEAR and INFER units that read stored values, or what other such units make of them.

    How large their values get is known from what is stored, as it is not of what enters the model. Units that
    are the same in every run are none of them: a runtime computes them once, and float32 costs nothing there.
    """
    varying = _varying(graph.root)
    entering = frozenset(graph.root.inputs)
    found: set[int] = set()
    for unit in graph.units:
        read = [value_of(site) for site in unit.uses]
        if (
            entries[unit.index].kind in _OPEN
            and not entering.intersection(read)
            and not varying.isdisjoint(unit.node.outputs)
            and found.issuperset(graph.predecessors[unit.index])
        ):
            found.add(unit.index)
    return frozenset(found)


def _varying(root: ir.Graph) -> set[ir.Value | None]:
    """All values that depend on what enters the model, or on what a body is given."""
    found: set[ir.Value | None] = set()
    for graph in graphs(root):
        found.update(value for value in graph.inputs if value.const_value is None)
        for node in graph:
            if not found.isdisjoint(node.inputs):
                found.update(node.outputs)
    return found
