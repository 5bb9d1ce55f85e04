"""The search: what each site adds, the cheapest choice that fits, and what of it can be half after all."""

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
from amp_rewrite.costs import model_costs, unpaid_parts
from amp_rewrite.costs.minimum_cut import UNLIMITED
from amp_rewrite.costs.model_costs import FEMTO, Prediction, Prices
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.flops import flop_count
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.tuning import effort
from amp_rewrite.tuning.switches import Rounding, Site, SwitchedSession

# Which units to keep in float32: the least predicted time, or the most arithmetic in half, within an
# error.
#
# `sum(time) + sum(Casts) + lambda * sum(error²)` has an exact minimum, a minimum cut (costs.unpaid_parts).
# A site whose error is infinite is rounded at no price.

_MOST_STEPS = 24
"""Steps of the bisection."""

_LEAST, _MOST = 1e-12, 1e6
"""Seconds that a squared error as large as the target's costs: from nothing to more than any run takes."""


class Choice:
    """The units that a painting has in half, and what it costs and gives to keep some in float32.

    `worth` are the FLOPs of units, where arithmetic in half is to count for more than any time; else empty.
    """

    def __init__(
        self, prices: Prices, painting: Painting, sites: Sequence[Site], worth: Mapping[int, int]
    ) -> None:
        self._prices, self._sites = prices, sites
        self._worth = [((unit,), -flops * _PER_FLOP) for unit, flops in worth.items()]
        self._halves = painting.halves
        self._gains = _gains(prices, worth)
        self._kept = [unit for unit, entry in enumerate(painting.entries) if entry.authority is Authority.PIN]

    def price(self, errors: Sequence[float], allowed: float) -> float:
        """The seconds that a squared error of 1 has to cost so that the squared errors of the sites which are
        then still rounded sum up to what is `allowed`, as far as pins leave it possible: by bisection.
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
        """What a unit alone gives in half: FLOPs or seconds, as the search wants them."""
        return self._gains[unit]

    def cost(self, halves: Sequence[bool], seconds: float) -> float:
        """What the search makes least of: predicted seconds at large sizes, or FLOPs in half, below 0."""
        return sum(price for (unit,), price in self._worth if halves[unit]) if self._worth else seconds

    def at(self, errors: Sequence[float], seconds: float) -> frozenset[int]:
        """The best units to keep where a squared error of 1 costs so many seconds."""
        prices = [
            (site.units, _price(error, seconds)) for site, error in zip(self._sites, errors, strict=True)
        ]
        known = self._prices
        return unpaid_parts.find_unpaid_parts(
            known.graph, known.costs, known.borders, self._halves, self._kept, (*prices, *self._worth)
        )

    def _error(self, errors: Sequence[float], gone: Collection[int]) -> float:
        """The sum of the errors of all sites that have a half unit left."""
        return sum(
            error for site, error in zip(self._sites, errors, strict=True) if self._is_rounded(site, gone)
        )

    def _is_rounded(self, site: Site, gone: Collection[int]) -> bool:
        return any(self._halves[unit] and unit not in gone for unit in site.units)


_PER_FLOP = 10**6
"""Femtoseconds that a FLOP in half is worth where arithmetic counts for more than time: a nanosecond."""


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


# What a search goes from and to: what is preferred, the plans that it finds, and its steps.


class Prefer(enum.Enum):
    """What a plan that meets the target has as much of as it can: less predicted TIME, or FLOPS in half."""

    TIME = "time"
    FLOPS = "flops"


@dataclass(frozen=True, slots=True)
class Found:
    """A painting, the units that the search keeps in float32 for it, the sites that it rounds, its squared
    error as measured, its predicted seconds at large sizes, what is predicted at the sizes that the model
    has, and what the search makes least of: `is_refused` where float32 itself is preferred, then `cost`.
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
        """The less, the better."""
        return self.is_refused, self.cost


@dataclass(frozen=True, slots=True)
class Step:
    """What is known at a step of the search, for who watches it: its runs, and the best plan so far, with
    the values that it rounds, of how many.
    """

    runs: int
    error: float
    rounded: int
    sites: int


@dataclass(frozen=True, slots=True)
class Point:
    """A plan that was measured: its predicted seconds at large sizes, its units in half, its error, and how
    many times as fast as float32 it is predicted to be at the sizes that the model has.
    """

    seconds: float
    half: int
    error: float
    speedup: float


Watch = Callable[[Step], None]


# How much each rounding site adds to the error of the outputs, by splitting.
#
# Errors of single sites add in squares: the squared error of a group is the sum of those of its halves, so
# that one run tells both. What overflows has an infinite error, and is split until it stands alone. The
# largest group is split until those that are left fit the target.

SquaredError = Callable[[Sequence[int]], float]
"""The squared error of the outputs with these sites on, relative to the target; infinite if one is lost."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sites next to each other, and their squared error together, relative to that of the target."""

    sites: tuple[int, ...]
    error: float

    @property
    def of_each(self) -> float:
        """The squared error of each of its sites: not known apart, it counts as the same."""
        return self.error / len(self.sites)


def split(
    groups: Iterable[Group], measure: SquaredError, fits: float, may_go_on: Callable[[], bool]
) -> list[Group]:
    """These groups, split until all but the largest single sites have a squared error of at most `fits`
    together, or may not go on.
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
    """Both halves of a group: one run tells both, or two where the difference would tell little: something
    overflows, or the second half has no more than errors of measurement.
    """
    middle = len(group.sites) // 2
    first, second = group.sites[:middle], group.sites[middle:]
    left = measure(first)
    right = group.error - left
    if math.isfinite(group.error) and right > _TOLD * group.error:
        return Group(first, left), Group(second, right)
    return Group(first, left), Group(second, measure(second))


_TOLD = 0.1
"""The share of a group's error from which on the difference tells that of a half: sums hold to a tenth."""


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
        """Nothing in half, as the gate asks where what was found is predicted to be no faster."""
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
        found = split(groups, known, fits, lambda: self._may_go_on(share))
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
        cost, refused = (
            self._choice.cost(halves, seconds),
            predicted.is_slower and self._analysis.options.gate,
        )
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


def _worth(analysis: Analysis, prefer: Prefer) -> Mapping[int, int]:
    """The FLOPs of the units that are half, where they count."""
    if prefer is Prefer.TIME:
        return {}
    flops = flop_count.count(analysis.loaded.model, analysis.graph.types, analysis.options.dims.dims).flops
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
