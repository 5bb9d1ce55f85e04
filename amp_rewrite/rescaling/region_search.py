"""`rescale`: a prepared model in which values that were observed to leave float16's range are stored times
powers of two, where range alone keeps units in float32: all of them, or the regions of which that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.idioms import gates
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.units import Unit, values_of
from amp_rewrite.colouring import classification, rules
from amp_rewrite.colouring.pruning import Priced
from amp_rewrite.errors import PlanError
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.policy.options import Options
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.rescaling import application, regions
from amp_rewrite.rescaling.application import Applied
from amp_rewrite.rescaling.regions import Causes, Magnitudes, binades
from amp_rewrite.rescaling.system import System
from amp_rewrite.rewriting import report
from amp_rewrite.rewriting.plan import Choice, Rescaled
from amp_rewrite.rewriting.report import Extent

Chooser = Callable[[Seen], Choice]
"""Chooses colours for a prepared model as it is, given observations."""


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


def improve(prepared: Prepared, choice: Choice, choose: Chooser, options: Options) -> Choice:
    """Return the choice for the model with values rescaled, in place, as far as that pays: with all that call
    for it, else with the regions that `regions.select` finds; the same choice, and model, where nothing pays.
    """
    demand = _demand(choice, options)
    if demand is None:
        return choice

    def rescale(unscaled: Collection[str] = ()) -> tuple[Choice, Applied | None]:
        applied = meet(prepared, choice.facts, demand.without(unscaled))
        if applied is None:
            return choice, None
        again = choose(applied.observations(choice.observed))
        rescaled = replace(applied.rescaled, freed=_count_freed(choice, again))
        return replace(again, rescaled=rescaled), applied

    whole, applied = rescale()
    if applied is None or _pays(whole.priced, choice.priced, is_needed=applied.is_needed):
        return whole
    applied.revert()
    is_tried = len(choice.facts.graph.units) <= regions.LARGEST
    parts, best = applied.rescaled.regions if is_tried else (), choice

    def pay(selected: Sequence[Causes]) -> bool:
        nonlocal best
        candidate, trial = rescale(regions.causes_outside(selected, parts))
        if trial is None:
            return False
        trial.revert()
        if pays := _pays(candidate.priced, best.priced, is_needed=False):
            best = candidate
        return pays

    selected = regions.select(parts, pay)
    return rescale(regions.causes_outside(selected, parts))[0] if selected else choice


def _demand(choice: Choice, options: Options) -> Demand | None:
    """Return what calls for other magnitudes; None where no unit is float32 for its range, or small.

    What is half without observations of range is to be half. A value is too small where half has few steps
    for its largest element.
    """
    facts = choice.facts
    findings = {u: each for u, each in facts.findings.items() if each.reason is not Reason.OBSERVED_OVERFLOW}
    is_faint = any(each.is_faint(options.half) for each in choice.observed.values())
    if len(findings) == len(facts.findings) and not is_faint:
        return None
    entries = classification.classify(facts.graph, findings, options, facts.freed)
    blind = rules.paint(facts.graph, entries, follow=options.follows, level=options.level)
    painting, observed = choice.priced.painting, choice.observed
    halves = [unit for unit in facts.graph.units if blind.is_half(unit.index)]
    blocked = [unit for unit in halves if not painting.is_half(unit.index) and unit.index in facts.findings]
    largest, fits = _magnitudes(halves, observed), facts.ranges.fits
    saturated = {*gates.find_saturated(facts.graph)}
    beyond = {
        value: most
        for value, most in _magnitudes(blocked, observed).items()
        if binades(most) > 0 and value not in saturated
    }
    weights = {value: fits[value].magnitude for unit in blocked for value in values_of(unit) if value in fits}
    small = {
        value: most for value, most in {**largest, **weights}.items() if 0 < most < FLOAT16.imprecise_below
    }
    flushed = small.keys() & {v for u in halves if painting.is_half(u.index) for v in values_of(u)}
    return Demand({**small, **beyond}, largest, flushed).without(options.unscaled)


def _pays(after: Priced, before: Priced, *, is_needed: bool) -> bool:
    """Return whether a rescaled model is predicted to be faster, or as fast where rescaling `is_needed`;
    without a prediction, whether it has half units.
    """
    if after.gated or not any(after.painting.halves):
        return False
    if after.prediction is None:
        return True
    time = after.prediction.float32 if before.prediction is None else before.prediction.result
    seconds = after.prediction.result.seconds
    return seconds < time.seconds or (is_needed and seconds == time.seconds)


def _count_freed(before: Choice, after: Choice) -> int:
    """Return the number of nodes that are float32 in the one choice, and half in the other."""
    was, now = (report.extents(each.facts.graph, each.priced.painting) for each in (before, after))
    return sum(extent is Extent.ALL for node, extent in now.items() if was.get(node) is Extent.NONE)


# Rescaling of a model in place.


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
    pairs = ((value, observed.get(value.name or "")) for unit in units for value in values_of(unit))
    return {value: extremes.most for value, extremes in pairs if extremes is not None and extremes.most > 0}
