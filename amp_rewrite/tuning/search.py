"""The search: site sensitivities, the cheapest fitting choice, and refinement towards more half units."""

from __future__ import annotations

import enum
import heapq
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from amp_rewrite.colouring import pruning
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs import flop_count, model_costs, unpaid_parts
from amp_rewrite.costs.minimum_cut import UNLIMITED
from amp_rewrite.costs.model_costs import FEMTO, Prediction, Prices
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.tuning import effort
from amp_rewrite.tuning.switches import Rounding, Site, SwitchedSession

# The choice of float32 units: the least predicted time, or the most arithmetic in half, within an error.
#
# `sum(time) + sum(Casts) + lambda * sum(error²)` has an exact minimum, a minimum cut (costs.unpaid_parts).
# A site with an infinite error is never rounded.

_MOST_STEPS = 24
"""Steps of the bisection."""

_LEAST, _MOST = 1e-12, 1e6
"""Bounds of the price in seconds of a squared error equal to the target's."""


class Choice:
    """The half units of a painting, with the costs and benefits of keeping some in float32.

    `worth` are the FLOPs of units if arithmetic in half counts for more than any time, else empty.
    """

    def __init__(
        self, prices: Prices, painting: Painting, sites: Sequence[Site], worth: Mapping[int, int]
    ) -> None:
        self._prices, self._sites = prices, sites
        self._worth = [((unit,), -flops * _PER_FLOP) for unit, flops in worth.items()]
        self._halves = painting.halves
        self._gains = _gains(prices, worth)
        self._pins = [unit for unit, entry in enumerate(painting.entries) if entry.authority is Authority.PIN]

    def price(self, errors: Sequence[float], allowed: float) -> float:
        """Return, by bisection, the price in seconds of a squared error of 1 at which the squared errors of
        the rounded sites sum to at most `allowed`, as far as pins permit.
        """
        low, high = math.log(_LEAST), math.log(_MOST)
        for _ in range(_MOST_STEPS):
            middle = (low + high) / 2
            if self._error(errors, self.at(errors, math.exp(middle))) <= allowed:
                high = middle
            else:
                low = middle
        return math.exp(high)

    def worth(self, unit: int) -> float:
        """Return the benefit of a single half unit: FLOPs or seconds, by the preference of the search."""
        return self._gains[unit]

    def cost(self, halves: Sequence[bool], seconds: float) -> float:
        """Return the objective: predicted seconds at large sizes, or the negative FLOPs in half."""
        return sum(price for (unit,), price in self._worth if halves[unit]) if self._worth else seconds

    def at(self, errors: Sequence[float], seconds: float) -> frozenset[int]:
        """Return the best units to keep in float32 at this price of a squared error of 1, in seconds."""
        prices = [
            (site.units, _price(error, seconds)) for site, error in zip(self._sites, errors, strict=True)
        ]
        model_prices = self._prices
        return unpaid_parts.find_unpaid_parts(
            model_prices.graph,
            model_prices.costs,
            model_prices.borders,
            self._halves,
            self._pins,
            (*prices, *self._worth),
        )

    def _error(self, errors: Sequence[float], float32_units: Collection[int]) -> float:
        """Return the sum of the errors of all sites with a remaining half unit."""
        return sum(
            error
            for site, error in zip(self._sites, errors, strict=True)
            if self._is_rounded(site, float32_units)
        )

    def _is_rounded(self, site: Site, float32_units: Collection[int]) -> bool:
        return any(self._halves[unit] and unit not in float32_units for unit in site.units)


_PER_FLOP = 10**6
"""The worth of a half FLOP in femtoseconds if FLOPs are preferred to time: a nanosecond."""


def _price(error: float, seconds: float) -> int:
    return int(error * seconds * FEMTO) if math.isfinite(error) else UNLIMITED


def _gains(prices: Prices, worth: Mapping[int, int]) -> Mapping[int, float]:
    if worth:
        return defaultdict(float, worth)
    gains: defaultdict[int, float] = defaultdict(float)
    for kernel in prices.costs.kernels:
        for at, unit in enumerate(kernel.units):
            gains[unit] += max(prices.costs.gain(kernel, at, prices.costs.large), 0) / FEMTO
    return gains


# The interface of a search: preference, plans and steps.


class Prefer(enum.Enum):
    """The objective among plans that meet the target: the least predicted TIME, or the most FLOPS in half."""

    TIME = "time"
    FLOPS = "flops"


@dataclass(frozen=True, slots=True)
class Found:
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
class Step:
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


Watch = Callable[[Step], None]


# Sensitivity of the outputs to each rounding site, by group splitting.
#
# Squared errors of sites add up: that of a group is the sum over its halves, so that one run measures both.
# A group that overflows has an infinite error, and is split down to single sites. The largest group is split
# until the remaining ones fit the target.

SquaredError = Callable[[Sequence[int]], float]
"""A function from rounded sites to the squared output error relative to the target, which may be infinite."""


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent sites, and their joint squared error, relative to that of the target."""

    sites: tuple[int, ...]
    error: float

    @property
    def of_each(self) -> float:
        """The squared error of each site, taken as equal within the group."""
        return self.error / len(self.sites)


def split(
    groups: Iterable[Group], measure: SquaredError, fits: float, may_go_on: Callable[[], bool]
) -> list[Group]:
    """Split groups until all but the largest single sites have a total squared error of at most `fits`, or
    the budget is used up.
    """
    queue: list[tuple[float, int, Group]] = []
    single: list[Group] = []
    for group in groups:
        _push(queue, group)
    while queue and may_go_on() and sum(group.error for _, _, group in queue) > fits:
        _, _, largest = heapq.heappop(queue)
        if len(largest.sites) == 1:
            single.append(largest)
            continue
        for half in _halves(largest, measure):
            _push(queue, half)
    return [*single, *(group for _, _, group in queue)]


def _push(queue: list[tuple[float, int, Group]], group: Group) -> None:
    heapq.heappush(queue, (-group.error, group.sites[0], group))


def _halves(group: Group, measure: SquaredError) -> tuple[Group, Group]:
    """Return both halves of a group, from one run, or from two if the difference is inaccurate: on overflow,
    or if the second half is within the measurement error.
    """
    middle = len(group.sites) // 2
    first, second = group.sites[:middle], group.sites[middle:]
    left = measure(first)
    right = group.error - left
    if math.isfinite(group.error) and right > _TOLD * group.error:
        return Group(first, left), Group(second, right)
    return Group(first, left), Group(second, measure(second))


_TOLD = 0.1
"""The share of a group's error above which the difference is accurate: sums hold within a tenth."""


def widest(analysis: Analysis, prefer: Prefer) -> Painting:
    """Return the default painting with all units that a search may have in half; if FLOPs are preferred,
    units with arithmetic are not pruned.
    """
    worth = _worth(analysis, prefer)
    has_half = any(analysis.painting.halves)
    return analysis.painted(analysis.options, worth) if worth and has_half else analysis.painting


class Search:
    """The search for one model with a switch for each site of the `widest` painting; `bound` is the error
    target, `most_runs` the budget of one call, and `end` the deadline (time.monotonic).

    All squared errors are relative to that of the bound. `noise` is that of float32 without rounding,
    `errors` are those of the sites, 0 if not measured, and `walked` are the measured plans.
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
        self._prices = model_costs.measure_prices(analysis.graph, analysis.options)
        self._choice = Choice(self._prices, widest, self._sites, self._worth)
        began = time.monotonic()
        self.noise, self.errors = session.squared(()), [0.0] * len(self._sites)
        if math.isfinite(end):
            runs = effort.SEARCHED * (end - began) / max(time.monotonic() - began, 1e-9)
            self._most_runs = min(most_runs, effort.BEFORE + int(runs))
        self.walked: list[Point] = []
        self._choices = self._began = 0
        self._met: list[Found] = []

    def run(self, limit: float, watch: Watch | None) -> Found:
        """Return the best plan with a squared error of at most `limit`, or the closest; that of the analysis
        if it fits.

        A call with a smaller limit continues from the best fitting plan of earlier calls.
        """
        self._limit, self._watch, began = limit, watch, self._session.runs
        sites = range(len(self._sites))
        self._best = self._measured((), self._painted(()))
        if self._is_met(self._best) or self.noise >= limit:
            return self._best
        if earlier := [plan for plan in self._met if self._is_met(plan)]:
            self._best = min(earlier, key=lambda plan: plan.rank)
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
        """Return the float32 plan, for the gate, if another plan is predicted to be no faster."""
        painting = pruning.gate(self._analysis.painting, instead.predicted)
        units = (u for u in range(len(painting.paints)) if self._analysis.painting.is_half(u))
        return replace(self._measured((), painting), kept=tuple(units), is_refused=False)

    def has_within(self, limit: float) -> bool:
        """Whether a plan with a squared error of at most `limit` was measured."""
        return any(plan.squared <= limit for plan in self._met)

    def _is_met(self, plan: Found) -> bool:
        return plan.squared <= self._limit

    def _may_go_on(self, share: float) -> bool:
        """Return whether the share of the run budget and the time are not used up."""
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
        """The limit for the sum of site errors."""
        return _MARGIN * (self._limit - self.noise)

    def _split(self, groups: Sequence[Group], share: float) -> list[Group]:
        """Measure the errors of single sites, within a share of the run budget."""
        measure, fits = self._above_noise, self._allowed * _KNOWN
        parts = split(groups, measure, fits, lambda: self._may_go_on(share))
        for group in parts:
            for site in group.sites:
                self.errors[site] = group.of_each
        return parts

    def _bisect(self, share: float) -> None:
        """Measure choices at different error prices, around the one predicted to fit."""
        price, factor, was_met = self._choice.price(self.errors, self._allowed), _FACTOR, None
        for _ in range(_STEPS):
            if not self._may_go_on(share) and self._choices >= effort.FEWEST_CHOICES:
                break
            self._choices += 1
            units = self._choice.at(self.errors, price)
            is_met = self._try(units, self._painted(units))
            if was_met is not None and is_met != was_met:
                factor = math.sqrt(factor)
            price, was_met = price / factor if is_met else price * factor, is_met

    def _free(self, share: float) -> None:
        """Return parts of the float32 units to half if the target is met without them.

        A choice by price is a vertex of the convex hull of all choices: better ones may lie between vertices.
        """
        if not self._is_met(self._best):
            return
        parts = Parts(self._best.kept, self._choice.worth)
        while (part := parts.next()) and self._may_go_on(share):
            units = set(self._best.kept).difference(part)
            painting = self._painted(units)
            if self._is_hopeless(painting) or not self._try(units, painting):
                parts.split(part)

    def _is_hopeless(self, painting: Painting) -> bool:
        """Whether its additional rounding is predicted to exceed the remaining error by far."""
        more = set(self._rounded(painting)).difference(self._best.rounded)
        return sum(self.errors[at] for at in more) > _HOPE * (self._limit - self._best.squared)

    def _try(self, units: Collection[int], painting: Painting) -> bool:
        """Measure a painting, update the best plan, and return whether it meets the target."""
        plan = self._measured(units, painting)
        if self._is_met(self._best) and self._is_met(plan):
            better = plan.rank < self._best.rank
        else:
            better = plan.squared < self._best.squared
        self._best = plan if better else self._best
        self._met += [plan] if self._is_met(plan) else []
        return self._is_met(plan)

    def _measured(self, units: Collection[int], painting: Painting) -> Found:
        rounded = self._rounded(painting)
        squared = self._session.squared(self._rounding.rounded(painting))
        halves = painting.halves
        seconds = self._prices.predict(halves, self._prices.costs.large).result.seconds
        predicted = self._predicted(painting)
        point = Point(seconds, sum(halves), math.sqrt(squared) * self._bound, predicted.speedup)
        self.walked += [point] if point not in self.walked else []
        cost, refused = (
            self._choice.cost(halves, seconds),
            predicted.is_slower and self._analysis.options.gate,
        )
        return Found(
            painting, tuple(sorted(units)), tuple(rounded), squared, seconds, predicted, refused, cost
        )

    def _predicted(self, painting: Painting) -> Prediction:
        """Predict the speed at the model's sizes."""
        return self._prices.predict(painting.halves)

    def _painted(self, units: Collection[int]) -> Painting:
        """Return the painting of the model with these units in float32."""
        if not units:
            return self._analysis.painting
        worst = dict.fromkeys(units, 0.0)
        for site, error in zip(self._sites, self.errors, strict=True):
            worst.update((unit, max(worst[unit], error)) for unit in site.units if unit in worst)
        findings = {unit: self._evidence(error) for unit, error in worst.items()}
        analysis = replace(self._analysis, findings={**self._analysis.findings, **findings})
        return analysis.painted(self._analysis.options, self._worth)

    def _evidence(self, squared: float) -> Evidence:
        error = math.sqrt(squared) * self._bound
        return Evidence(Authority.OBSERVATION, Reason.SENSITIVE, number=error, limit=self._bound)

    def _rounded(self, painting: Painting) -> list[int]:
        """Return the indices of the sites that a painting rounds."""
        return [at for at, site in enumerate(self._sites) if any(map(painting.is_half, site.units))]


_MARGIN = 0.81
"""The share of the squared target for the first choice: site errors are accurate within a tenth."""

_KNOWN = 0.5
"""The share of the allowed error for sites that are not measured separately."""

_FACTOR, _STEPS = 4.0, 8
"""The initial factor between error prices, and the most changes."""

_HOPE = 2.0
"""The ratio of predicted to remaining error above which a part is split without a measurement."""


def _worth(analysis: Analysis, prefer: Prefer) -> Mapping[int, int]:
    """Return the FLOPs of the units if the search prefers FLOPs, else nothing."""
    if prefer is Prefer.TIME:
        return {}
    flops = flop_count.count(analysis.loaded.model, analysis.graph.types, analysis.options.dims.dims).flops
    pairs = ((unit, flops.get(analysis.graph.units[unit].node)) for unit in range(len(analysis.graph.units)))
    return {unit: count for unit, count in pairs if count}


class Parts:
    """A queue of parts: runs of adjacent units, which split into halves of equal worth."""

    def __init__(self, units: Iterable[int], worth: Callable[[int], float]) -> None:
        self._worth = worth
        self._queue: list[tuple[float, tuple[int, ...]]] = []
        self._push(tuple(sorted(units)))

    def next(self) -> tuple[int, ...]:
        """Pop the part with the greatest worth; empty if the queue is empty."""
        return heapq.heappop(self._queue)[1] if self._queue else ()

    def split(self, part: tuple[int, ...]) -> None:
        """Push the halves of a part; a single unit has none."""
        if len(part) > 1:
            sums = list(itertools.accumulate(map(self._worth, part)))
            middle = sum(1 for each in sums[:-1] if each <= sums[-1] / 2)
            middle = min(max(middle, 1), len(part) - 1)
            self._push(part[:middle])
            self._push(part[middle:])

    def _push(self, part: tuple[int, ...]) -> None:
        if part:
            heapq.heappush(self._queue, (-sum(map(self._worth, part)), part))
