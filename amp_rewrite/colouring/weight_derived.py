"""Units computed from stored values alone in float32, such as rows of a table selected by integer inputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.analysis.units import UnitGraph, value_of
from amp_rewrite.model.dataflow import varying_values
from amp_rewrite.policy.operator_lists import Entry, Kind

_OPEN = (Kind.CLEAR, Kind.INFER)


def find(graph: UnitGraph, entries: Sequence[Entry]) -> frozenset[int]:
    """The CLEAR and INFER units whose float32 inputs are stored values or outputs of other such units.

    The magnitude of their values is known from what is stored, unlike that of a model input. Units whose
    values are the same in every run are excluded: a runtime computes them once, and float32 costs nothing.
    """
    entering = frozenset(graph.root.inputs)
    varying: set[ir.Value | None] | None = None
    derived: set[int] = set()
    for unit in graph.units:
        if (
            (entries[unit.index].taken_as in _OPEN or _is_inside(graph, unit.index))
            and derived.issuperset(graph.predecessors[unit.index])
            and entering.isdisjoint(map(value_of, unit.uses))
        ):
            varying = varying_values(graph.nodes) if varying is None else varying  # few models need it
            if not varying.isdisjoint(unit.node.outputs):
                derived.add(unit.index)
    return frozenset(derived)


def _is_inside(graph: UnitGraph, unit: int) -> bool:
    """Whether a unit is an inner part of an idiom."""
    return unit in graph.spelled and graph.spelled[unit].part is Part.INNER
