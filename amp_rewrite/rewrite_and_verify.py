"""Rewrite and compare; on failure without what was freed, then with what the original's values show."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amp_rewrite.analysis.observed import Observed
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.numerics.half import Half
from amp_rewrite.pipeline import Result
from amp_rewrite.running.verification import Verdict

Verification = Verdict | AmpRewriteError | None
"""A verdict, or the error that prevented one; None if none was requested."""


class ObservePolicy(enum.Enum):
    """When the float32 model is run to observe its values: before the rewrite, on a failure, or never."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The steps; `rewrite` and `verify` run a second time if `observe` found values beyond half's range.

    Where units are half because bounds prove that they fit, `rewrite_unfreed` leaves these as the list says.
    """

    rewrite: Callable[[Observed], Result[Any]]
    verify: Callable[[Result[Any]], Verification]
    observe: Callable[[], Observed]
    rewrite_unfreed: Callable[[Observed], Result[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final result, and its verification."""

    result: Result[Any]
    verification: Verification


def rewrite_and_verify(callbacks: Callbacks, half: Half, policy: ObservePolicy) -> Outcome:
    """Rewrites and verifies a model, again without what was freed if the first verdict fails, and again if
    that fails as well and observation can help.

    Raises what the callbacks raise.
    """

    def attempt(rewrite: Callable[[Observed], Result[Any]], seen: Observed) -> Outcome:
        result = rewrite(seen)
        return Outcome(result, callbacks.verify(result))

    rewrite, seen = callbacks.rewrite, callbacks.observe() if policy is ObservePolicy.ALWAYS else {}
    first = attempt(rewrite, seen)
    if _is_far(first) and first.result.report.freed and callbacks.rewrite_unfreed is not None:
        rewrite = callbacks.rewrite_unfreed
        first = attempt(rewrite, seen)
    if policy is not ObservePolicy.ON_FAILURE or not _is_far(first):
        return first
    seen = callbacks.observe()
    return attempt(rewrite, seen) if any(value.is_beyond(half) for value in seen.values()) else first


def _is_far(outcome: Outcome) -> bool:
    return isinstance(outcome.verification, Verdict) and outcome.verification.is_far
