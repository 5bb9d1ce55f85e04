"""Rewrite and compare; on failure observe the values of the original, and rewrite once more."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from amp_rewrite.analysis.observed import Seen
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.numerics.half import Half
from amp_rewrite.pipeline import Result
from amp_rewrite.running.verification import Verdict

Verification = Verdict | AmpRewriteError | None
"""A verdict, or the error that prevented one; None if none was requested."""


_NOTHING: Seen = MappingProxyType({})


class ObservePolicy(enum.Enum):
    """When the float32 model is run to observe its values: before the rewrite, on a failure, or never."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The steps; `rewrite` and `verify` run a second time if `observe` found more values beyond half's range.

    `observe` gives what is known with what it saw.
    """

    rewrite: Callable[[Seen], Result[Any]]
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
    """Rewrites and verifies a model, twice if the first verdict fails and observation can help.

    `known` is what was seen of its values before. Raises what the callbacks raise.
    """

    def attempt(seen: Seen) -> Outcome:
        result = callbacks.rewrite(seen)
        return Outcome(result, callbacks.verify(result))

    first = attempt(callbacks.observe() if policy is ObservePolicy.ALWAYS else known)
    failed = isinstance(first.verification, Verdict) and first.verification.is_far
    if policy is not ObservePolicy.ON_FAILURE or not failed:
        return first
    seen = callbacks.observe()
    return attempt(seen) if _beyond(seen, half) - _beyond(known, half) else first


def _beyond(seen: Seen, half: Half) -> frozenset[str]:
    return frozenset(name for name, extremes in seen.items() if extremes.is_beyond(half))
