"""The search for the values to rescale: all values that call for it, or the regions of which that pays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.colouring import classification, rules
from amp_rewrite.colouring.pruning import Priced
from amp_rewrite.policy.options import Options
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.rescaling import demands, regions
from amp_rewrite.rescaling.application import Applied
from amp_rewrite.rescaling.demands import Demand
from amp_rewrite.rescaling.regions import Causes
from amp_rewrite.rewriting import report
from amp_rewrite.rewriting.plan import Rescaled
from amp_rewrite.rewriting.report import Extent


@dataclass(frozen=True, slots=True)
class Choice:
    """A priced painting, with the observations, facts and bounds behind it, and what was rescaled for it."""

    observed: Seen
    facts: Facts
    proven: Proven | None
    priced: Priced
    rescaled: Rescaled | None = None


Chooser = Callable[[Seen], Choice]
"""Chooses colours for a prepared model as it is, given observations."""


def improve(prepared: Prepared, choice: Choice, choose: Chooser, options: Options) -> Choice:
    """Return the choice for the model with values rescaled, in place, as far as that pays: with all that call
    for it, else with the regions that `regions.select` finds; the same choice, and model, where nothing pays.
    """
    demand = _demand(choice, options)
    if demand is None:
        return choice

    def rescale(unscaled: Collection[str] = ()) -> tuple[Choice, Applied | None]:
        applied = demands.meet(prepared, choice.facts, demand.without(unscaled))
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
    """Return what calls for other magnitudes; None where no unit is float32 for its range, or faint."""
    facts, painting = choice.facts, choice.priced.painting
    findings = demands.without_range(facts.findings)
    is_faint = any(each.is_faint(options.half) for each in choice.observed.values())
    if len(findings) == len(facts.findings) and not is_faint:
        return None
    entries = classification.classify(facts.graph, findings, options, facts.freed)
    blind = rules.paint(facts.graph, entries, follow=options.follows, level=options.level)
    return demands.find(facts, blind, painting, choice.observed).without(options.unscaled)


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
