"""Rewrite, compare, and where the two are too far apart look at the values and rewrite again."""

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

Judged = Verdict | AmpRewriteError | None
"""A verdict, or why there is none; None when none was asked for."""


class Looking(enum.Enum):
    """When the float32 model is run to look at its values: first, on a failure, never."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Steps:
    """What there is to do; `rewrite` and `judge` are done again when `observe` saw what half cannot hold."""

    rewrite: Callable[[Observed], Result[Any]]
    judge: Callable[[Result[Any]], Judged]
    observe: Callable[[], Observed]


@dataclass(frozen=True, slots=True)
class Proof:
    """The result that counts, and the verdict on it."""

    result: Result[Any]
    judged: Judged


def prove(steps: Steps, half: Half, looking: Looking) -> Proof:
    """Rewrites and judges a model, a second time where the first failed and looking at its values can help.

    Raises what the steps raise.
    """
    seen = steps.observe() if looking is Looking.ALWAYS else {}
    proof = _once(steps, seen)
    if looking is not Looking.ON_FAILURE or not (isinstance(proof.judged, Verdict) and proof.judged.is_far):
        return proof
    seen = steps.observe()
    return _once(steps, seen) if any(value.is_beyond(half) for value in seen.values()) else proof


def _once(steps: Steps, seen: Observed) -> Proof:
    result = steps.rewrite(seen)
    return Proof(result, steps.judge(result))
