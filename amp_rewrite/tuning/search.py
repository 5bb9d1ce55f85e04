"""The search for a plan within an error: sensitivities, the cheapest choice by them, and its pruning."""

from __future__ import annotations

import bisect
import enum
import functools
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from amp_rewrite.colouring import pruning
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs import flop_count, model_costs, unpaid_parts
from amp_rewrite.costs.model_costs import FEMTO, Prediction, Prices
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.tuning.sensitivity import Rounding, Sensitivities, Site, SwitchedSession


class Prefer(enum.Enum):
    """The objective among plans that meet the target: the least predicted TIME, or the most FLOPS in half."""

    TIME = "time"
    FLOPS = "flops"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan: a painting, the units that the search keeps in float32, the rounded sites, the measured squared
    error, the predicted seconds at large sizes, the prediction at the model's sizes, and the objective:
    `is_refused` if the gate prefers float32, then `cost`.
    """

    painting: Painting
    kept: tuple[int, ...]
    rounded: tuple[int, ...]
    squared: float
    seconds: float
    predicted: Prediction
    is_refused: bool
    cost: float

    @property
    def rank(self) -> tuple[bool, float]:
        """The objective, to be minimised."""
        return self.is_refused, self.cost


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The progress of a search, for its watcher: runs, the error of the best plan so far, and its number of
    rounded values, with the total.
    """

    runs: int
    error: float
    rounded: int
    sites: int


@dataclass(frozen=True, slots=True)
class Point:
    """A measured plan: its predicted seconds at large sizes, its number of half units, its error, and its
    predicted speedup over float32 at the model's sizes.
    """

    seconds: float
    half: int
    error: float
    speedup: float


Watch = Callable[[SearchStep], None]


# The choice of float32 units: the least predicted time, or the most arithmetic in half, within an error.
#
# `sum(time) + sum(Casts) + lambda * sum(error²)` has an exact minimum, a minimum cut (costs.unpaid_parts).
# A site with an infinite error is never rounded.

_HALVINGS = 24
"""Steps of the bisection of lambda."""

_LEAST, _MOST = 1e-12, 1e6
"""Bounds of lambda, the price in seconds of a squared error equal to the target's."""

_PER_FLOP = 10**6
"""The worth of a half FLOP in femtoseconds if FLOPs are preferred to time: a nanosecond."""


class FloatChoice:
    """The half units of a painting, with the costs and benefits of keeping some in float32.

    `worth` are the FLOPs of units if arithmetic in half counts for more than any time, else empty.
    """

    def __init__(
        self, prices: Prices, painting: Painting, sites: Sequence[Site], worth: Mapping[int, int]
    ) -> None:
        self._prices, self._sites, self._halves = prices, sites, painting.halves
        self._worth = [((unit,), -flops * _PER_FLOP) for unit, flops in worth.items()]
        self._pins = [unit for unit, entry in enumerate(painting.entries) if entry.authority is Authority.PIN]
        self._gains: defaultdict[int, float] = defaultdict(float, worth)
        for kernel in () if worth else prices.costs.kernels:
            for at, unit in enumerate(kernel.units):
                self._gains[unit] += max(prices.costs.gain(kernel, at, prices.costs.large), 0) / FEMTO

    def gain(self, unit: int) -> float:
        """Return the benefit of a single half unit: FLOPs or seconds, by the preference of the search."""
        return self._gains[unit]

    def cost(self, halves: Sequence[bool], seconds: float) -> float:
        """Return the objective: predicted seconds at large sizes, or the negative FLOPs in half."""
        return sum(price for (unit,), price in self._worth if halves[unit]) if self._worth else seconds

    def price(self, errors: Sequence[float], allowed: float) -> float:
        """Return the price in seconds of a squared error of 1 at which the squared errors of the rounded
        sites sum to at most `allowed`, as far as pins permit.
        """
        low, high = math.log(_LEAST), math.log(_MOST)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_within = self._error(errors, self.at(errors, math.exp(middle))) <= allowed
            low, high = (low, middle) if is_within else (middle, high)
        return math.exp(high)

    def at(self, errors: Sequence[float], seconds: float) -> frozenset[int]:
        """Return the best units to keep in float32 at this price of a squared error of 1."""
        prices = (
            (site.units, int(error * seconds * FEMTO) if math.isfinite(error) else unpaid_parts.UNLIMITED)
            for site, error in zip(self._sites, errors, strict=True)
        )
        model = self._prices
        further = (*prices, *self._worth)
        return unpaid_parts.find_unpaid_parts(
            model.graph, model.costs, model.borders, self._halves, self._pins, further
        )

    def _error(self, errors: Sequence[float], float32_units: Collection[int]) -> float:
        """Return the sum of the errors of all sites with a remaining half unit."""
        return sum(
            error
            for site, error in zip(self._sites, errors, strict=True)
            if any(self._halves[unit] and unit not in float32_units for unit in site.units)
        )


def widest(analysis: Analysis, prefer: Prefer) -> Painting:
    """Return the default painting with all units that a search may have in half; if FLOPs are preferred,
    units with arithmetic are not pruned.
    """
    worth = _worth(analysis, prefer)
    has_half = any(analysis.painting.halves)
    return analysis.painted(analysis.options, worth) if worth and has_half else analysis.painting


def _worth(analysis: Analysis, prefer: Prefer) -> Mapping[int, int]:
    """Return the FLOPs of the units if the search prefers FLOPs, else nothing."""
    if prefer is Prefer.TIME:
        return {}
    flops = flop_count.count(analysis.loaded.model, analysis.graph.types, analysis.options.dims.dims).flops
    pairs = ((unit, flops.get(analysis.graph.units[unit].node)) for unit in range(len(analysis.graph.units)))
    return {unit: count for unit, count in pairs if count}


class Search:
    """The search for one model with a switch for each place of the `widest` painting; `bound` is the error
    target, `runs` the most runs, and `end` the deadline (time.monotonic), which may be infinite: without one
    a search gives the same plan on every machine.

    All squared errors are relative to that of the bound. `noise` is that of float32 without rounding,
    `errors` are those of the sites (0 before a search), and `walked` are the measured plans.
    """

    def __init__(
        self,
        analysis: Analysis,
        widest: Painting,
        rounding: Rounding,
        session: SwitchedSession,
        bound: float,
        prefer: Prefer,
        runs: int,
        end: float,
    ) -> None:
        self._analysis, self._rounding, self._session, self._bound = analysis, rounding, session, bound
        self._runs, self._began, self._end = runs, time.monotonic(), end
        self._sites = rounding.sites
        self._worth = _worth(analysis, prefer)
        self._prices = model_costs.measure_prices(analysis.graph, analysis.options)
        self._choice = FloatChoice(self._prices, widest, self._sites, self._worth)
        self.noise = session.squared(())
        self._sensitivities: Sensitivities | None = None
        self.errors: Sequence[float] = [0.0] * len(self._sites)
        self.walked: list[Point] = []
        self._met: list[Candidate] = []
        self._choices = self._before = 0

    def run(self, limit: float, watch: Watch | None) -> Candidate:
        """Return the best plan with a squared error of at most `limit`, or the closest; that of the analysis
        if it fits.

        A call with a smaller limit continues from the best fitting plan of earlier calls.
        """
        self._limit, self._watch = limit, watch
        self._best = self._measured((), self._painted(()))
        if self._best.squared <= limit or self.noise >= limit:
            return self._best
        if earlier := [plan for plan in self._met if plan.squared <= limit]:
            self._best = min(earlier, key=lambda plan: plan.rank)
            self._free(_AGAIN)
            return self._best
        self._before = self._session.runs
        known = self._sensitivities or Sensitivities(self._above_noise, len(self._sites))
        self._sensitivities, self.errors = known, known.errors
        allowed = _MARGIN * (limit - self.noise)
        for to_split, to_try in _ROUNDS:
            known.refine(allowed * _KNOWN, functools.partial(self._may_go_on, to_split))
            self._choose(allowed, to_try)
            self._free(to_try)
        return self._best

    def float32(self, instead: Candidate) -> Candidate:
        """Return the float32 plan, for the gate, if another plan is predicted to be no faster."""
        painting = pruning.gate(self._analysis.painting, instead.predicted)
        units = (u for u in range(len(painting.paints)) if self._analysis.painting.is_half(u))
        return replace(self._measured((), painting), kept=tuple(units), is_refused=False)

    def _may_go_on(self, share: float) -> bool:
        """Return whether this share of the runs and of the time is not used up."""
        runs, best = self._session.runs, self._best
        if self._watch is not None:
            error = math.sqrt(best.squared) * self._bound
            self._watch(SearchStep(runs, error, len(best.rounded), len(self._sites)))
        is_late = time.monotonic() > self._began + share * (self._end - self._began)
        is_over = runs >= self._runs * _CALLS or is_late
        return not is_over and runs - self._before < (self._runs - _BEFORE) * share

    def _above_noise(self, sites: Sequence[int]) -> float:
        return self._session.above_noise(place for site in sites for place in self._sites[site].places)

    def _choose(self, allowed: float, share: float) -> None:
        """Measure choices at different prices of an error, around the one predicted to fit."""
        price, factor, was_met = self._choice.price(self.errors, allowed), _FACTOR, None
        for _ in range(_STEPS):
            if self._choices >= FEWEST and not self._may_go_on(share):
                break
            self._choices += 1
            units = self._choice.at(self.errors, price)
            is_met = self._try(units, self._painted(units)).squared <= self._limit
            factor = factor if was_met in (None, is_met) else math.sqrt(factor)
            price, was_met = price / factor if is_met else price * factor, is_met

    def _free(self, share: float) -> None:
        """Return parts of the float32 units to half if the target is met without them.

        A choice by price is a vertex of the convex hull of all choices: better ones may lie between vertices.
        """
        parts = [self._best.kept]
        while parts and self._best.squared <= self._limit and self._may_go_on(share):
            parts.sort(key=lambda part: (-sum(map(self._choice.gain, part)), part))
            part = parts.pop(0)
            units = set(self._best.kept).difference(part)
            painting = self._painted(units)
            if self._is_hopeless(painting) or self._try(units, painting).squared > self._limit:
                parts += self._halves(part)

    def _halves(self, part: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return two parts of equal gain; nothing for a single unit."""
        if len(part) < 2:
            return []
        sums = list(itertools.accumulate(map(self._choice.gain, part)))
        middle = min(max(bisect.bisect_right(sums, sums[-1] / 2), 1), len(part) - 1)
        return [part[:middle], part[middle:]]

    def _is_hopeless(self, painting: Painting) -> bool:
        """Whether its additional rounding is predicted to exceed the remaining error by far."""
        more = set(self._rounded(painting)).difference(self._best.rounded)
        return sum(self.errors[at] for at in more) > _HOPE * (self._limit - self._best.squared)

    def _try(self, units: Collection[int], painting: Painting) -> Candidate:
        """Measure a painting, and update the best plan."""
        plan, best = self._measured(units, painting), self._best
        if max(best.squared, plan.squared) <= self._limit:
            is_better = plan.rank < best.rank
        else:
            is_better = plan.squared < best.squared
        self._best = plan if is_better else best
        self._met += [plan] if plan.squared <= self._limit else []
        return plan

    def _measured(self, units: Collection[int], painting: Painting) -> Candidate:
        squared, halves = self._session.squared(self._rounding.rounded(painting)), painting.halves
        seconds = self._prices.time(halves, self._prices.costs.large).seconds
        predicted = self._prices.predict(halves)
        point = Point(seconds, sum(halves), math.sqrt(squared) * self._bound, predicted.speedup)
        self.walked += [point] if point not in self.walked else []
        return Candidate(
            painting,
            tuple(sorted(units)),
            tuple(self._rounded(painting)),
            squared,
            seconds,
            predicted,
            is_refused=predicted.is_slower and self._analysis.options.gate,
            cost=self._choice.cost(halves, seconds),
        )

    def _painted(self, units: Collection[int]) -> Painting:
        """Return the painting of the model with these units in float32."""
        if not units:
            return self._analysis.painting
        worst = dict.fromkeys(units, 0.0)
        for site, error in zip(self._sites, self.errors, strict=True):
            worst.update((unit, max(worst[unit], error)) for unit in site.units if unit in worst)
        findings = {
            unit: Evidence(
                Authority.OBSERVATION,
                Reason.SENSITIVE,
                number=math.sqrt(error) * self._bound,
                limit=self._bound,
            )
            for unit, error in worst.items()
        }
        analysis = replace(self._analysis, findings={**self._analysis.findings, **findings})
        return analysis.painted(self._analysis.options, self._worth)

    def _rounded(self, painting: Painting) -> list[int]:
        """Return the indices of the sites that a painting rounds."""
        return [at for at, site in enumerate(self._sites) if any(map(painting.is_half, site.units))]


_ROUNDS, _AGAIN = ((0.3, 0.5), (0.6, 0.75), (0.85, 0.95)), 1.0
"""The shares of all runs up to which each round measures sensitivities, and then choices; that up to which a
search for a smaller limit frees parts.
"""

_CALLS, _BEFORE = 2, 2
"""The runs of all searches for one plan, as a multiple of those of the first, and the runs before that."""

_MARGIN = 0.81
"""The share of the squared target for the first choice: site errors are accurate within a tenth."""

_KNOWN = 0.5
"""The share of the allowed error for sites that are not measured separately."""

_FACTOR = 4.0
"""The initial factor between the prices of choices."""

_STEPS, FEWEST = 8, 3
"""The most choices of a round, and the fewest of a search, whatever the runs: without further measurements
all sites count as equally sensitive, which mends a model slightly above the target.
"""

_HOPE = 2.0
"""The ratio of predicted to remaining error above which a part is split without a measurement."""
