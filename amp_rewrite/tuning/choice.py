"""Which units to keep in float32: the least predicted time, or the most arithmetic in half, within an error.

`sum(time) + sum(Casts) + lambda * sum(error²)` has an exact minimum, a minimum cut (costs.unpaid_parts).
A site whose error is infinite is rounded at no price.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs import unpaid_parts
from amp_rewrite.costs.minimum_cut import UNLIMITED
from amp_rewrite.costs.model_costs import FEMTO, Prices
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.tuning.sites import Site

_STEPS = 24
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
        for _ in range(_STEPS):
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
