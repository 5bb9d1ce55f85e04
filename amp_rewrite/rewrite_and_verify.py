"""Rewrite, compare, and rewrite again: without what was freed, and by what values and outputs show."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from amp_rewrite.analysis import faint_outputs
from amp_rewrite.analysis.faint_outputs import Faint
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.numerics.half import Half
from amp_rewrite.pipeline import Result
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.running.metrics import SMALLEST
from amp_rewrite.running.verdict import Output, Verdict
from amp_rewrite.tuning.tuned import Tuned

Verification = Verdict | AmpRewriteError | None
"""A verdict, or the error that prevented one; None if none was requested."""

_NONE: Faint = MappingProxyType({})
_NOTHING: Seen = MappingProxyType({})


class ObservePolicy(enum.Enum):
    """When runs decide: before the rewrite (ALWAYS, and again as ON_FAILURE), by the verdict, or never.

    A failed verdict has the values of the float32 model observed; ALWAYS observes them at once.
    """

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The steps; `rewrite` and `verify` run again if `observe` found more values beyond half's range, if a
    verdict shows outputs that half stores badly, and by the plan that `tune` finds for a result that failed;
    None where it finds none.

    `observe` gives what is known with what it saw. `unfreed` are the steps that leave to the list what bounds
    free of it; None where nothing can be freed.
    """

    rewrite: Callable[[Seen, Faint, SavedPlan | None], Result[Any]]
    verify: Callable[[Result[Any]], Verification]
    observe: Callable[[], Seen]
    tune: Callable[[Result[Any], Seen, Faint], Tuned | None]
    unfreed: Callbacks | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final result, its verification, and what was tuned for it; None where nothing was."""

    result: Result[Any]
    verification: Verification
    tuned: Tuned | None = None

    @property
    def is_far(self) -> bool:
        """Whether it was compared, and is not near enough to the original."""
        return isinstance(self.verification, Verdict) and self.verification.is_far

    @property
    def has_misfits(self) -> bool:
        """Whether it was compared, and an input or output alone, which is half, makes it too far."""
        return isinstance(self.verification, Verdict) and bool(self.verification.misfits)


def rewrite_and_verify(
    callbacks: Callbacks, half: Half, policy: ObservePolicy, known: Seen = _NOTHING
) -> Outcome:
    """Rewrites and verifies a model; again, where the first verdict fails, without what bounds freed, where
    observation can help, where the last products before outputs in float32 bring these nearer, and where it
    is tuned. What was taken back stays so in what follows. Inputs and outputs that half cannot hold are no
    matter of what is computed: then the first attempt stands.

    `known` is what was seen of its values before. Raises what the callbacks raise.
    """
    seen = callbacks.observe() if policy is ObservePolicy.ALWAYS else known
    found = _attempt(callbacks, seen, _NONE)
    if policy is ObservePolicy.NEVER or found.has_misfits:
        return found
    if found.is_far and found.result.report.freed and callbacks.unfreed is not None:
        callbacks = callbacks.unfreed
        found = _attempt(callbacks, seen, _NONE)
    if policy is ObservePolicy.ON_FAILURE and found.is_far:
        seen = callbacks.observe()
        if _beyond(seen, half) - _beyond(known, half):
            found = _attempt(callbacks, seen, _NONE)
    if faint := _faint(found.verification, half):
        nearer = _attempt(callbacks, seen, faint)
        if not _is_nearer(found.verification, nearer.verification, faint):
            nearer, faint = Outcome(callbacks.rewrite(seen, _NONE, None), found.verification), _NONE
        found = nearer
    return _tuned(callbacks, found, seen, faint) if found.is_far and not found.has_misfits else found


def _attempt(callbacks: Callbacks, seen: Seen, faint: Faint, tuned: Tuned | None = None) -> Outcome:
    result = callbacks.rewrite(seen, faint, tuned.plan if tuned else None)
    return Outcome(result, callbacks.verify(result), tuned)


def _tuned(callbacks: Callbacks, failed: Outcome, seen: Seen, faint: Faint) -> Outcome:
    """The outcome by a tuned plan, where it is nearer than what failed."""
    tuned = callbacks.tune(failed.result, seen, faint)
    assert isinstance(failed.verification, Verdict), "a verdict failed"
    nearer = tuned is not None and tuned.half and tuned.verdict.error < failed.verification.error
    if tuned is None or not (tuned.is_met or nearer):
        return replace(failed, tuned=tuned)
    found = _attempt(callbacks, _NOTHING, _NONE, tuned)
    matched = failed.result.report.matched  # which a plan has no patterns for
    return replace(found, result=replace(found.result, report=replace(found.result.report, matched=matched)))


def _beyond(seen: Seen, half: Half) -> frozenset[str]:
    return frozenset(name for name, extremes in seen.items() if extremes.is_beyond(half))


def _faint(verdict: Verification, half: Half) -> dict[str, float]:
    """The outputs to which rounding them alone makes most of an error above the limit."""
    outputs = verdict.outputs if isinstance(verdict, Verdict) else ()
    limit = faint_outputs.limit(half)
    floors = {output.name: output.floor for output in outputs if output.floor and _is_rounded(output)}
    return {name: floor for name, floor in floors.items() if limit < floor < math.inf}


def _is_rounded(output: Output) -> bool:
    """Whether the error is not much below what rounding the output makes."""
    by_spread = max(1.0, SMALLEST / output.spread) if output.spread else 1.0  # however faint
    return (output.floor or 0.0) <= 2 * (output.error or 0.0) * by_spread


def _is_nearer(before: Verification, after: Verification, faint: Faint) -> bool:
    """Whether a verdict is as good as before, none of these outputs farther, and one at most half as far."""
    if not isinstance(before, Verdict) or not isinstance(after, Verdict) or before.ok > after.ok:
        return False
    was, now = _differences(before), _differences(after)
    shares = [now.get(name, math.inf) / was[name] for name in faint]
    return max(shares) <= 1 and min(shares) <= 1 / 2


def _differences(verdict: Verdict) -> dict[str, float]:
    return {output.name: output.error or 0.0 for output in verdict.outputs}
