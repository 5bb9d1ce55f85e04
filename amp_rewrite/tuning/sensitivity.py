"""How much each rounding site adds to the error of the outputs, by splitting.

Errors of single sites add in squares: the squared error of a group is the sum of those of its halves, so that
one run tells both. What overflows has an infinite error, and is split until it stands alone. The largest
group is split until those that are left fit the target.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
