"""Rewrite, compare, and rewrite once more by what that shows of values and outputs."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from amp_rewrite.analysis import faint_outputs
from amp_rewrite.analysis.faint_outputs import Faint
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.numerics.half import Half
from amp_rewrite.pipeline import Result
from amp_rewrite.running.verdict import Output, Verdict

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
    """The steps; `rewrite` and `verify` run again if `observe` found more values beyond half's range, and if a
    verdict shows outputs that half stores badly.

    `observe` gives what is known with what it saw.
    """

    rewrite: Callable[[Seen, Faint], Result[Any]]
    verify: Callable[[Result[Any]], Verification]
    observe: Callable[[], Seen]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final result, and its verification."""

    result: Result[Any]
    verification: Verification


def rewrite_and_verify(
    callbacks: Callbacks, half: Half, policy: ObservePolicy, known: Seen = _NOTHING
) -> Outcome:
    """Rewrites and verifies a model; again, where the first verdict fails and observation can help, and where
    the last products before outputs in float32 bring these nearer.

    `known` is what was seen of its values before. Raises what the callbacks raise.
    """

    def attempt(seen: Seen, faint: Faint) -> Outcome:
        result = callbacks.rewrite(seen, faint)
        return Outcome(result, callbacks.verify(result))

    seen = callbacks.observe() if policy is ObservePolicy.ALWAYS else known
    found = attempt(seen, _NONE)
    if policy is ObservePolicy.NEVER:
        return found
    failed = isinstance(found.verification, Verdict) and found.verification.is_far
    if policy is ObservePolicy.ON_FAILURE and failed:
        seen = callbacks.observe()
        if _beyond(seen, half) - _beyond(known, half):
            found = attempt(seen, _NONE)
    faint = _faint(found.verification, half)
    if not faint:
        return found
    nearer = attempt(seen, faint)
    if _is_nearer(found.verification, nearer.verification, faint):
        return nearer
    return Outcome(callbacks.rewrite(seen, _NONE), found.verification)


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
    floor = (output.floor or 0.0) * output.metrics.scale
    return floor <= 2 * output.metrics.rms


def _is_nearer(before: Verification, after: Verification, faint: Faint) -> bool:
    """Whether a verdict is as good as before, none of these outputs farther, and one at most half as far."""
    if not isinstance(before, Verdict) or not isinstance(after, Verdict) or before.ok > after.ok:
        return False
    was, now = _differences(before), _differences(after)
    shares = [now.get(name, math.inf) / was[name] for name in faint]
    return max(shares) <= 1 and min(shares) <= 1 / 2


def _differences(verdict: Verdict) -> dict[str, float]:
    return {output.name: output.metrics.rms for output in verdict.outputs}
