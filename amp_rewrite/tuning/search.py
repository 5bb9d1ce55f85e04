"""The search: what each site adds, the cheapest choice that fits, and what of it can be half after all."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from amp_rewrite.colouring import pruning
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs import prices
from amp_rewrite.costs.prediction import Prediction
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.flops import flop_count
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import Options
from amp_rewrite.tuning import effort, sensitivity
from amp_rewrite.tuning.choice import Choice
from amp_rewrite.tuning.sensitivity import Group
from amp_rewrite.tuning.sites import Rounding
from amp_rewrite.tuning.switched_session import SwitchedSession
from amp_rewrite.tuning.tuned import Found, Point, Prefer, Step, Watch


def widest(analysis: Analysis, prefer: Prefer) -> Painting:
    """The default painting, with all that a search may have in half: where arithmetic counts, no such unit is
    pruned.
    """
    worth = _worth(analysis, prefer)
    has_half = any(analysis.painting.halves)
    return analysis.painted(analysis.options, worth) if worth and has_half else analysis.painting


class Search:
    """The search for one model with a switch for each site, those of the `widest` painting; `bound` is the
    error to stay within, `most_runs` those of one call, and `end` the time (time.monotonic) to stop at.

    All squared errors are relative to that of the bound. `noise` is that of no site rounded, `errors` are
    those of the sites as far as they are known, and `walked` what was measured.
    """

    def __init__(
        self,
        analysis: Analysis,
        widest: Painting,
        rounding: Rounding,
        session: SwitchedSession,
        bound: float,
        prefer: Prefer,
        most_runs: int,
        end: float,
    ) -> None:
        self._analysis, self._rounding, self._session, self._bound = analysis, rounding, session, bound
        self._most_runs, self._end = most_runs, end
        self._sites = rounding.sites
        self._worth = _worth(analysis, prefer)
        self._prices = prices.measure(analysis.graph, analysis.options)
        self._choice = Choice(self._prices, widest, self._sites, self._worth)
        self._may_be_slower = _may_be_slower(analysis.options, prefer, self._predicted(analysis.painting))
        began = time.monotonic()
        self.noise, self.errors = session.squared(()), [0.0] * len(self._sites)
        if math.isfinite(end):
            runs = effort.SEARCHED * (end - began) / max(time.monotonic() - began, 1e-9)
            self._most_runs = min(most_runs, effort.BEFORE + int(runs))
        self.walked: list[Point] = []
        self._choices = self._began = 0
        self._met: list[Found] = []

    def run(self, limit: float, watch: Watch | None) -> Found:
        """The best painting with a squared error of at most `limit`, or the closest; that of the analysis
        where it fits.

        A call for less goes on from the best of what an earlier one found on its way.
        """
        self._limit, self._watch, began = limit, watch, self._session.runs
        sites = range(len(self._sites))
        self._best = self._measured((), self._painted(()))
        if self._is_met(self._best) or self.noise >= limit:
            return self._best
        if earlier := [found for found in self._met if self._is_met(found)]:
            self._best = min(earlier, key=lambda found: found.rank)
            self._free(effort.AGAIN)
        else:
            self._began = began
            groups = [Group(tuple(sites), self._above_noise(sites))]
            for to_split, to_try in effort.ROUNDS:
                groups = self._split(groups, to_split)
                self._bisect(to_try)
                self._free(to_try)
        return self._best

    def float32(self, instead: Found) -> Found:
        """Nothing in half, as what was found instead is predicted to be no faster."""
        painting = pruning.gate(self._analysis.painting, instead.predicted)
        kept = (u for u in range(len(painting.paints)) if self._analysis.painting.is_half(u))
        return replace(self._measured((), painting), kept=tuple(kept), is_refused=False)

    def has_within(self, limit: float) -> bool:
        """Whether a plan with a squared error of at most `limit` was measured."""
        return any(found.squared <= limit for found in self._met)

    def _is_met(self, found: Found) -> bool:
        return found.squared <= self._limit

    def _may_go_on(self, share: float) -> bool:
        """Whether less than a share of the runs was used, and there is time."""
        best, sites = self._best, len(self._sites)
        error = math.sqrt(best.squared) * self._bound
        if self._watch is not None:
            self._watch(Step(self._session.runs, error, len(best.rounded), sites))
        runs = self._session.runs - self._began
        is_over = self._session.runs >= self._most_runs * effort.CALLS or time.monotonic() > self._end
        return not is_over and runs < (self._most_runs - effort.BEFORE) * share

    def _above_noise(self, sites: Sequence[int]) -> float:
        places = (place for site in sites for place in self._sites[site].places)
        return max(self._session.squared(places) - self.noise, 0.0)

    @property
    def _allowed(self) -> float:
        """What the errors of sites may sum up to."""
        return _MARGIN * (self._limit - self.noise)

    def _split(self, groups: Sequence[Group], share: float) -> list[Group]:
        """Finds the errors of sites by themselves, as far as a share of the search tells them."""
        known, fits = self._above_noise, self._allowed * _KNOWN
        found = sensitivity.split(groups, known, fits, lambda: self._may_go_on(share))
        for group in found:
            for site in group.sites:
                self.errors[site] = group.of_each
        return found

    def _bisect(self, share: float) -> None:
        """Measures choices at different prices of an error, around the one that ought to fit."""
        price, factor, was_met = self._choice.price(self.errors, self._allowed), _FACTOR, None
        for _ in range(_STEPS):
            if not self._may_go_on(share) and self._choices >= effort.FEWEST_CHOICES:
                break
            self._choices += 1
            kept = self._choice.at(self.errors, price)
            is_met = self._try(kept, self._painted(kept))
            if was_met is not None and is_met != was_met:
                factor = math.sqrt(factor)
            price, was_met = price / factor if is_met else price * factor, is_met

    def _free(self, share: float) -> None:
        """Takes parts of what is kept back into half where the target is met without them.

        A choice by price is a corner of the hull of all choices: between two corners there may be others.
        """
        if not self._is_met(self._best):
            return
        parts = Parts(self._best.kept, self._choice.worth)
        while (part := parts.next()) and self._may_go_on(share):
            kept = set(self._best.kept).difference(part)
            painting = self._painted(kept)
            if self._is_hopeless(painting) or not self._try(kept, painting):
                parts.split(part)

    def _is_hopeless(self, painting: Painting) -> bool:
        """Whether what it rounds besides is thought to add far more than what the target leaves."""
        more = set(self._rounded(painting)).difference(self._best.rounded)
        return sum(self.errors[at] for at in more) > _HOPE * (self._limit - self._best.squared)

    def _try(self, kept: Collection[int], painting: Painting) -> bool:
        """Whether the target is met with these units kept; the best is remembered."""
        found = self._measured(kept, painting)
        if self._is_met(self._best) and self._is_met(found):
            better = found.rank < self._best.rank
        else:
            better = found.squared < self._best.squared
        self._best = found if better else self._best
        self._met += [found] if self._is_met(found) else []
        return self._is_met(found)

    def _measured(self, kept: Collection[int], painting: Painting) -> Found:
        rounded = self._rounded(painting)
        squared = self._session.squared(self._rounding.rounded(painting))
        halves = painting.halves
        seconds = self._prices.predict(halves, self._prices.costs.large).result.seconds
        predicted = self._predicted(painting)
        point = Point(seconds, sum(halves), math.sqrt(squared) * self._bound, predicted.speedup)
        self.walked += [point] if point not in self.walked else []
        cost, refused = self._choice.cost(halves, seconds), predicted.is_slower and not self._may_be_slower
        return Found(
            painting, tuple(sorted(kept)), tuple(rounded), squared, seconds, predicted, refused, cost
        )

    def _predicted(self, painting: Painting) -> Prediction:
        """At the sizes that the model has."""
        return self._prices.predict(painting.halves)

    def _painted(self, kept: Collection[int]) -> Painting:
        """How the model is coloured with these units in float32."""
        if not kept:
            return self._analysis.painting
        worst = dict.fromkeys(kept, 0.0)
        for site, error in zip(self._sites, self.errors, strict=True):
            worst.update((unit, max(worst[unit], error)) for unit in site.units if unit in worst)
        found = {unit: self._evidence(error) for unit, error in worst.items()}
        held = replace(self._analysis, findings={**self._analysis.findings, **found})
        return held.painted(self._analysis.options, self._worth)

    def _evidence(self, squared: float) -> Evidence:
        error = math.sqrt(squared) * self._bound
        return Evidence(Authority.OBSERVATION, Reason.SENSITIVE, number=error, limit=self._bound)

    def _rounded(self, painting: Painting) -> list[int]:
        """The positions of the sites that a painting rounds."""
        return [at for at, site in enumerate(self._sites) if any(map(painting.is_half, site.units))]


_MARGIN = 0.81
"""The share of the target's square that the first choice may use: single errors are known to a tenth."""

_KNOWN = 0.5
"""The share of that which sites may have whose errors are not known apart."""

_FACTOR, _STEPS = 4.0, 8
"""By how much the price of an error changes at first, and how often."""

_HOPE = 2.0
"""Parts that are thought to add more than so many times what is left are not tried whole."""


def _may_be_slower(options: Options, prefer: Prefer, default: Prediction) -> bool:
    """Whether a plan may be predicted no faster than float32: where half arithmetic or a pin was asked for,
    or half does not pay by default either, as in models of small tensors.
    """
    asked = prefer is Prefer.FLOPS or bool(options.pins.force_half)
    return not options.gate and (asked or default.is_slower)


def _worth(analysis: Analysis, prefer: Prefer) -> Mapping[int, int]:
    """The FLOPs of the units that are half, where they count."""
    if prefer is Prefer.TIME:
        return {}
    flops = flop_count.count(analysis.loaded.model, analysis.graph.types).flops
    known = ((unit, flops.get(analysis.graph.units[unit].node)) for unit in range(len(analysis.graph.units)))
    return {unit: found for unit, found in known if found}


class Parts:
    """Runs of units next to each other, of which each is taken whole or in halves of the same worth."""

    def __init__(self, units: Iterable[int], worth: Callable[[int], float]) -> None:
        self._worth = worth
        self._queue: list[tuple[float, tuple[int, ...]]] = []
        self._push(tuple(sorted(units)))

    def next(self) -> tuple[int, ...]:
        """The part that is worth most, taken out of the queue; empty if there is none left."""
        return heapq.heappop(self._queue)[1] if self._queue else ()

    def split(self, part: tuple[int, ...]) -> None:
        """Puts the halves of a part back; a single unit has none."""
        if len(part) > 1:
            sums = list(itertools.accumulate(map(self._worth, part)))
            middle = sum(1 for each in sums[:-1] if each <= sums[-1] / 2)
            middle = min(max(middle, 1), len(part) - 1)
            self._push(part[:middle])
            self._push(part[middle:])

    def _push(self, part: tuple[int, ...]) -> None:
        if part:
            heapq.heappush(self._queue, (-sum(map(self._worth, part)), part))
