"""`rescale`: a prepared model in which values that were observed to leave float16's range are stored times
powers of two, where range alone keeps units in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.idioms import gates
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.units import Unit, UnitGraph, value_of
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.errors import PlanError
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.rescaling import application, propagation, system
from amp_rewrite.rescaling.application import Applied
from amp_rewrite.rescaling.propagation import Demands
from amp_rewrite.rewriting.plan import Rescaled


def leaves_range(facts: Facts) -> bool:
    """Return whether observations keep a unit in float32."""
    return any(evidence.reason is Reason.OBSERVED_OVERFLOW for evidence in facts.findings.values())


def rescale(
    prepared: Prepared, facts: Facts, blind: Painting, painting: Painting, seen: Seen
) -> Applied | None:
    """Rescale a model in place; None, and no change, where nothing can be gained.

    `painting` is decided with the facts of these observations, `blind` without.
    """
    idioms = _fused_nodes(facts.graph)
    wanted = _demands(facts, idioms, blind, painting, seen)
    if not wanted.beyond:
        return None
    equations = system.build(prepared.model, prepared.types, idioms)
    exponents = propagation.solve(equations, wanted)
    if not exponents:
        return None
    applied = application.apply(equations, exponents, prepared.types)
    largest = max(wanted.beyond, key=lambda value: wanted.beyond[value])
    named = replace(applied.rescaled, largest=largest.name or "", most=wanted.beyond[largest])
    return replace(applied, rescaled=named)


def replay(prepared: Prepared, graph: UnitGraph, rescaled: Rescaled, where: str) -> None:
    """Rescale a model in place as a saved plan says; raise PlanError where it is of another model."""
    equations = system.build(prepared.model, prepared.types, _fused_nodes(graph))
    exponents = application.find_exponents(equations, rescaled.values)
    if exponents is None:
        raise PlanError("this plan was made for another model", where=where)
    application.apply(equations, exponents, prepared.types)


def _fused_nodes(graph: UnitGraph) -> Collection[ir.Node]:
    """Return the nodes of written-out activations and softmaxes, which runtimes fuse as they are."""
    return {graph.units[unit].node for unit, part in graph.spelled.items() if part.operator in gates.FUSED}


def _demands(
    facts: Facts, idioms: Collection[ir.Node], blind: Painting, painting: Painting, seen: Seen
) -> Demands:
    """Return the values beyond half's range of the units that only observations keep in float32."""
    halves = [unit for unit in facts.graph.units if blind.is_half(unit.index)]
    beyond = (
        value
        for unit in halves
        if not painting.is_half(unit.index) and _is_observed(facts, unit)
        for value in _values(unit)
        if not _is_inside(value, idioms) and _is_beyond(value, seen)
    )
    return propagation.demands((value for unit in halves for value in _values(unit)), beyond, seen)


def _is_observed(facts: Facts, unit: Unit) -> bool:
    evidence = facts.findings.get(unit.index)
    return evidence is not None and evidence.reason is Reason.OBSERVED_OVERFLOW


def _is_beyond(value: ir.Value, seen: Seen) -> bool:
    extremes = seen.get(value.name or "")
    return extremes is not None and extremes.is_beyond(FLOAT16)


def _is_inside(value: ir.Value, idioms: Collection[ir.Node]) -> bool:
    """Return whether only a fused kernel reads a value that it produces."""
    readers = {node for node, _ in value.uses()}
    return value.producer() in idioms and not value.is_graph_output() and readers.issubset(idioms)


def _values(unit: Unit) -> Iterator[ir.Value]:
    return (value for value in (*unit.defs, *map(value_of, unit.uses)) if value is not None)
