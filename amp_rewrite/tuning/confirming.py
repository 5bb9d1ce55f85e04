"""From what a search emulates to what `verify` says of the real result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from amp_rewrite.tuning.search import Search
from amp_rewrite.tuning.tuned import Found, Tuned, Watch


def confirmed(search: Search, confirm: Callable[[Found], Tuned], end: float, watch: Watch | None) -> Tuned:
    """The first plan whose model passes, or the closest: the search is for less where a model fails. Float32
    itself where all of that is predicted to be no faster, and float32 passes.
    """
    found = search.run(math.inf, watch)  # the default plan
    best = tuned = confirm(found)
    search.walked[0] = replace(search.walked[0], error=tuned.verdict.error)
    share = _at_first(found, tuned)
    for left in range(_CONFIRMATIONS, 0, -1):
        if not _goes_on(tuned) or _is_over(search, share, end, left):
            break
        found = search.run(share**2, watch)
        if found.is_refused:
            break
        tuned = confirm(found)
        best = min(best, tuned, key=lambda each: (not each.is_met, each.verdict.error))
        share = min(share, _next(found, tuned))
    return _float32_or(search, found, best, confirm) if _goes_on(best) and found.is_refused else best


def _goes_on(tuned: Tuned) -> bool:
    """Whether a plan that is nearer would be better, and may be had."""
    return not tuned.is_met and tuned.verdict.is_far and not tuned.is_below_noise


def _float32_or(search: Search, found: Found, best: Tuned, confirm: Callable[[Found], Tuned]) -> Tuned:
    """Float32 where that passes, in place of what is predicted no faster; else the closest of both."""
    exact = confirm(search.float32(found))
    return exact if exact.is_met else min(best, confirm(found), key=lambda each: each.verdict.error)


def _is_over(search: Search, share: float, end: float, left: int) -> bool:
    """Whether the time is, and no more is to be confirmed of what was measured by then; not before a search,
    which takes few runs then.
    """
    is_first = left == _CONFIRMATIONS
    is_late = left > _CONFIRMATIONS - _LATE
    return time.monotonic() > end and not (is_first or (is_late and search.has_within(share**2)))


_CONFIRMATIONS, _LATE = 6, 2
"""How many plans are confirmed at most, and how many of them though the time is over."""

_AT_FIRST = 0.97
"""The share of the target to search for: most results were at most 3 % farther off than emulated."""

_TIGHTER, _FAR_TIGHTER = 0.98, 0.5
"""The share of an emulated error to search for, where the real one is above the target, and where it is not
but the verdict fails for something else."""


def _at_first(found: Found, tuned: Tuned) -> float:
    """The share of the target to search for after the default plan: less by half, on a logarithmic scale, of
    what that is farther off than emulated. What onnxruntime fuses differs by float32's noise, which takes
    values over to the next number of half: of few outputs the errors differ by half for that.
    """
    emulated, real = math.sqrt(found.squared) * searched(tuned.target), tuned.verdict.error
    if not (0 < emulated < math.inf and math.isfinite(real)):
        return _AT_FIRST
    return _AT_FIRST / math.sqrt(max(1.0, real / emulated))


def _next(found: Found, tuned: Tuned) -> float:
    """The share of the target to search for after a plan that failed: halfway to where the next plan would
    be near enough if it were as much farther off than emulated as this one.
    """
    emulated, real = math.sqrt(found.squared), tuned.verdict.error / searched(tuned.target)
    if not math.isfinite(emulated):
        return 1.0
    return emulated / math.sqrt(real) * _TIGHTER if 1 < real < math.inf else emulated * _FAR_TIGHTER


def searched(target: float) -> float:
    """The error that others are measured in: the target, or one that no rounding is within."""
    return max(target, _NOTHING)


_NOTHING = 1e-30
"""What counts as an error of 0, whose square can be divided by."""
