"""How many runs and how much time the parts of a search may take."""

from __future__ import annotations

from typing import NamedTuple

FEWEST_RUNS = 24
"""A search may take so many runs, or half as many as there are sites."""

FEWEST_CHOICES = 3
"""The choices that are measured, however little time there is: as long as nothing else is known, all sites
count as equally bad, which mends a model that is only just too far.
"""

BEFORE = 2
"""The runs before a search: with no site rounded, and with those of the default plan."""


class Share(NamedTuple):
    """Of the runs that a search may take, and of its time."""

    runs: float
    time: float


ROUNDS = tuple(
    (Share(split, split), Share(tried, tried)) for split, tried in ((0.3, 0.5), (0.6, 0.75), (0.85, 0.95))
)
"""The share up to which each round measures groups of sites, and up to which choices."""

AGAIN = Share(runs=1.0, time=1.0)
"""The share up to which a search for less frees parts again: of the runs, what the earlier one left."""
