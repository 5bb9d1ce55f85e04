"""`rescale`: a prepared model in which values that were observed to leave float16's range are stored times
powers of two, where range alone keeps units in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.idioms import gates
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.units import Unit, value_of
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.errors import PlanError
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.policy.evidence import Evidence, Reason
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.rescaling import application, regions
from amp_rewrite.rescaling.application import Applied
from amp_rewrite.rescaling.regions import Magnitudes, binades
from amp_rewrite.rescaling.system import System
from amp_rewrite.rewriting.plan import Rescaled

_OF_RANGE = (Reason.OBSERVED_OVERFLOW, Reason.FAINT_FACTOR)
"""The reasons for float32 that a power of two may take away."""


def without_range(findings: Mapping[int, Evidence]) -> Mapping[int, Evidence]:
    """Return the findings but for those of range."""
    return {unit: evidence for unit, evidence in findings.items() if evidence.reason not in _OF_RANGE}


@dataclass(frozen=True, slots=True)
class Demand:
    """The values that half cannot hold and those that it holds, each with its largest magnitude; `flushed`
    are those that half would hold as 0.
    """

    values: Magnitudes
    halves: Magnitudes
    flushed: Collection[ir.Value] = ()

    def without(self, names: Collection[str]) -> Demand:
        """Return the same without the demand of the values of these names."""
        values = {value: most for value, most in self.values.items() if value.name not in names}
        return replace(self, values=values)


def find(facts: Facts, blind: Painting, painting: Painting, observed: Seen) -> Demand:
    """Return the demand of a model whose `painting` is decided with the facts of these observations, `blind`
    without those of range. A value is too small where half has few steps for its largest element.
    """
    halves = [unit for unit in facts.graph.units if blind.is_half(unit.index)]
    blocked = [unit for unit in halves if not painting.is_half(unit.index) and unit.index in facts.findings]
    largest, fits = _magnitudes(halves, observed), facts.ranges.fits
    saturated = {*gates.find_saturated(facts.graph)}
    beyond = {
        value: most
        for value, most in _magnitudes(blocked, observed).items()
        if binades(most) > 0 and value not in saturated
    }
    weights = {value: fits[value].magnitude for unit in blocked for value in _values(unit) if value in fits}
    faint = {value: most for value, most in {**largest, **weights}.items() if 0 < most < FLOAT16.faint}
    flushed = faint.keys() & {v for u in halves if painting.is_half(u.index) for v in _values(u)}
    return Demand({**faint, **beyond}, largest, flushed)


def meet(prepared: Prepared, facts: Facts, demand: Demand) -> Applied | None:
    """Rescale a model in place so that all values fit into half; None where no exponents do that."""
    if not demand.values:
        return None
    system = System(prepared.model, prepared.types, _pinned_nodes(facts))
    solved = [*regions.solve(system, demand.values, demand.halves)]
    if not solved:
        return None
    exponents = {variable: e for region in solved for variable, e in region.items()}
    causes = [demand.values.keys() & map(system.value, region) for region in solved]
    names = tuple(tuple(sorted(value.name or "" for value in values)) for values in causes)
    largest = max(demand.values, key=lambda value: demand.values[value])
    applied = application.apply(system, exponents, prepared.types)
    rescaled = replace(
        applied.rescaled, largest=largest.name or "", most=demand.values[largest], regions=names
    )
    is_needed = any(value.name in applied.origins for value in demand.flushed)
    return replace(applied, rescaled=rescaled, is_needed=is_needed)


def replay(prepared: Prepared, facts: Facts, rescaled: Rescaled, where: str) -> None:
    """Rescale a model in place as a saved plan says; raise PlanError where it is of another model."""
    system = System(prepared.model, prepared.types, _pinned_nodes(facts))
    try:
        exponents = application.find(system, rescaled.values)
    except LookupError as error:
        raise PlanError("this plan was made for another model", where=where) from error
    application.apply(system, exponents, prepared.types)


def _pinned_nodes(facts: Facts) -> Collection[ir.Node]:
    """Return the nodes of written-out activations and softmaxes, which runtimes fuse as they are, and those
    on the way from a mask to a softmax.
    """
    units, masked = facts.graph.units, facts.ranges.masks.units()
    fused = (unit for unit, part in facts.graph.spelled.items() if part.operator in gates.FUSED)
    return {units[unit].node for unit in (*fused, *masked)}


def _magnitudes(units: Iterable[Unit], observed: Seen) -> Magnitudes:
    """Return the largest observed magnitudes of the values of units, but for those that are 0."""
    pairs = ((value, observed.get(value.name or "")) for unit in units for value in _values(unit))
    return {value: extremes.most for value, extremes in pairs if extremes is not None and extremes.most > 0}


def _values(unit: Unit) -> Iterator[ir.Value]:
    return (value for value in (*unit.defs, *map(value_of, unit.uses)) if value is not None)
