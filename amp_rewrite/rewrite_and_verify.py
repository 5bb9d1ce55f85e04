"""Rewrite and compare; on failure observe the values of the original, and rewrite once more."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amp_rewrite.analysis.observed import Observed
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.numerics.half import Half
from amp_rewrite.pipeline import Result
from amp_rewrite.running.verdict import Verdict

Verification = Verdict | AmpRewriteError | None
"""A verdict, or the error that prevented one; None if none was requested."""


class ObservePolicy(enum.Enum):
    """When the float32 model is run to observe its values: before the rewrite, on a failure, or never."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The steps; `rewrite` and `verify` run a second time if `observe` found values beyond half's range."""

    rewrite: Callable[[Observed], Result[Any]]
    verify: Callable[[Result[Any]], Verification]
    observe: Callable[[], Observed]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final result, and its verification."""

    result: Result[Any]
    verification: Verification


def rewrite_and_verify(callbacks: Callbacks, half: Half, policy: ObservePolicy) -> Outcome:
    """Rewrites and verifies a model, twice if the first verdict fails and observation can help.

    Raises what the callbacks raise.
    """

    def attempt(seen: Observed) -> Outcome:
        result = callbacks.rewrite(seen)
        return Outcome(result, callbacks.verify(result))

    first = attempt(callbacks.observe() if policy is ObservePolicy.ALWAYS else {})
    failed = isinstance(first.verification, Verdict) and first.verification.is_far
    if policy is not ObservePolicy.ON_FAILURE or not failed:
        return first
    seen = callbacks.observe()
    return attempt(seen) if any(value.is_beyond(half) for value in seen.values()) else first
