"""`rescale`: a prepared model in which values that were observed to leave float16's range are stored times
powers of two, where range alone keeps units in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.idioms import gates
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.units import Unit, UnitGraph, value_of
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.errors import PlanError
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.rescaling import application, regions
from amp_rewrite.rescaling.application import Applied
from amp_rewrite.rescaling.regions import Magnitudes, binades
from amp_rewrite.rescaling.system import System
from amp_rewrite.rewriting.plan import Rescaled


def is_held_by_range(facts: Facts, unit: int) -> bool:
    """Return whether observations keep a unit in float32."""
    return unit in facts.findings and facts.findings[unit].reason is Reason.OBSERVED_OVERFLOW


def rescale(
    prepared: Prepared, facts: Facts, blind: Painting, painting: Painting, observed: Seen
) -> Applied | None:
    """Rescale a model in place; None, and no change, where nothing can be gained.

    `painting` is decided with the facts of these observations, `blind` without.
    """
    halves = [unit for unit in facts.graph.units if blind.is_half(unit.index)]
    blocked = [
        unit for unit in halves if not painting.is_half(unit.index) and is_held_by_range(facts, unit.index)
    ]
    fused = _fused_nodes(facts.graph)
    largest = _observed(
        (value for unit in blocked for value in _values(unit) if not _is_inside(value, fused)), observed
    )
    beyond = {value: most for value, most in largest.items() if binades(most) > 0}
    return meet(
        prepared, facts.graph, beyond, _observed((v for unit in halves for v in _values(unit)), observed)
    )


def meet(prepared: Prepared, graph: UnitGraph, beyond: Magnitudes, halves: Magnitudes) -> Applied | None:
    """Rescale a model in place so that these values fit into half; None where no exponents do that."""
    system = System(prepared.model, prepared.types, _fused_nodes(graph)) if beyond else None
    exponents = regions.solve(system, beyond, halves) if system is not None else {}
    if system is None or not exponents:
        return None
    largest = max(beyond, key=lambda value: beyond[value])
    name = largest.name or ""
    applied = application.apply(system, exponents, prepared.types)
    return replace(applied, rescaled=replace(applied.rescaled, largest=name, most=beyond[largest]))


def replay(prepared: Prepared, graph: UnitGraph, rescaled: Rescaled, where: str) -> None:
    """Rescale a model in place as a saved plan says; raise PlanError where it is of another model."""
    system = System(prepared.model, prepared.types, _fused_nodes(graph))
    try:
        exponents = application.find(system, rescaled.values)
    except LookupError as error:
        raise PlanError("this plan was made for another model", where=where) from error
    application.apply(system, exponents, prepared.types)


def _fused_nodes(graph: UnitGraph) -> Collection[ir.Node]:
    """Return the nodes of written-out activations and softmaxes, which runtimes fuse as they are."""
    return {graph.units[unit].node for unit, part in graph.spelled.items() if part.operator in gates.FUSED}


def _observed(values: Iterable[ir.Value], observed: Seen) -> Magnitudes:
    pairs = ((value, observed.get(value.name or "")) for value in values)
    return {value: extremes.most for value, extremes in pairs if extremes is not None and extremes.most > 0}


def _is_inside(value: ir.Value, fused: Collection[ir.Node]) -> bool:
    """Return whether only a fused kernel reads a value that it produces."""
    readers = {node for node, _ in value.uses()}
    return value.producer() in fused and not value.is_graph_output() and readers.issubset(fused)


def _values(unit: Unit) -> Iterator[ir.Value]:
    return (value for value in (*unit.defs, *map(value_of, unit.uses)) if value is not None)
