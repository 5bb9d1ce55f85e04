"""Units that read inputs declared to overflow half."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.observed import HEADROOM
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.given import InputRange, Source
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_facts.operators import MOVERS
from amp_rewrite.policy.evidence import Authority, Evidence, Reason


def find(facts: Facts, root: ir.Graph, proven: Proven, half: Half) -> Mapping[int, Evidence]:
    """Return the units that read an input declared to exceed half, with HEADROOM, or movers of it.

    Results of other operators are bounded from above only, and need not be that large.
    """
    masking = facts.ranges.masks.units()
    inputs = {value.name: value for value in root.inputs}
    evidence: dict[int, Evidence] = {}
    for each in proven.inputs:
        if each.source is Source.DECLARED and _exceeds(each, half):
            for unit in _reached_units(facts, inputs[each.name], proven, half.largest / HEADROOM):
                if unit not in masking:
                    evidence.setdefault(unit, _evidence(each, half))
    return evidence


def _exceeds(declaration: InputRange, half: Half) -> bool:
    """Return True for a range with a finite end outside half, with HEADROOM; infinite ends do not count."""
    ends = [abs(end) for end in (declaration.low, declaration.high) if math.isfinite(end)]
    return max(ends, default=0.0) * HEADROOM > half.largest


def _evidence(declaration: InputRange, half: Half) -> Evidence:
    number = max((end for end in (declaration.low, declaration.high) if math.isfinite(end)), key=abs)
    reason = Reason.DECLARED_OVERFLOW
    return Evidence(Authority.RANGE, reason, declaration.name, number, half.largest, half.name)


def _reached_units(facts: Facts, start: ir.Value, proven: Proven, most: float) -> dict[int, None]:
    """Return the units that read a value, or outputs of movers that may be as large."""
    graph = facts.graph
    units: dict[int, None] = {}
    todo = [start]
    while todo:
        for unit, _ in graph.uses.get(todo.pop(), ()):
            if unit in units:
                continue
            units[unit] = None
            if effective_op(graph.units[unit].node) in MOVERS:
                todo += [value for value in graph.units[unit].defs if not proven.of(value).most <= most]
    return units
