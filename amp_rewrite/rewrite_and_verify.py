"""Rewrite, compare, and where the outputs are too far apart observe the values and rewrite again."""

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

VerdictOrError = Verdict | AmpRewriteError | None
"""A verdict, or why there is none; None when no comparison was asked for."""


class ObservePolicy(enum.Enum):
    """When the float32 model is run to observe its values: before the rewrite, on a failure, or never."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Steps:
    """The three steps; `rewrite` and `compare` are repeated when `observe` finds values beyond half."""

    rewrite: Callable[[Observed], Result[Any]]
    compare: Callable[[Result[Any]], VerdictOrError]
    observe: Callable[[], Observed]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final result, and the verdict on it."""

    result: Result[Any]
    verdict: VerdictOrError


def run(steps: Steps, half: Half, policy: ObservePolicy) -> Outcome:
    """Rewrites and compares a model, a second time where the first failed and observed values can help.

    Raises what the steps raise.
    """
    outcome = _once(steps, steps.observe() if policy is ObservePolicy.ALWAYS else {})
    failed = isinstance(outcome.verdict, Verdict) and outcome.verdict.is_far
    if policy is not ObservePolicy.ON_FAILURE or not failed:
        return outcome
    seen = steps.observe()
    return _once(steps, seen) if any(value.is_beyond(half) for value in seen.values()) else outcome


def _once(steps: Steps, seen: Observed) -> Outcome:
    result = steps.rewrite(seen)
    return Outcome(result, steps.compare(result))
