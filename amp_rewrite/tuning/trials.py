"""Trials after a repair that failed: flags for the user, each of which is compared before it is suggested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.running.sessions import LARGE
from amp_rewrite.running.verdict import Tried
from amp_rewrite.tuning.repair import Outcome, Work, repair

NEARER = 0.9
"""The share of the error that pins must leave at most, for more of them to be tried."""

Trial = Callable[[Outcome, Outcome], Options | None]
"""A function that returns other options for a failed outcome, or None. The second argument is the outcome of
the pins so far.
"""


def _with_io(failed: Outcome, _: Outcome) -> Options | None:
    options, verdict = failed.settings.options, failed.verdict
    names = tuple(port.name for port in verdict.misfits) if verdict is not None else ()
    return replace(options, keep_io=(*options.keep_io, *names)) if names else None


def _with_pins(failed: Outcome, pinned: Outcome) -> Options | None:
    options, verdict = pinned.settings.options, pinned.verdict
    patterns = verdict.blame.keep_full if verdict is not None and verdict.blame else ()
    keep_full = tuple(dict.fromkeys((*options.pins.keep_full, *patterns)))
    if failed.has_misfits or keep_full == options.pins.keep_full:
        return None
    return replace(options, pins=replace(options.pins, keep_full=keep_full))


def _at_level(level: Level, beside: Level) -> Trial:
    """Return a trial of one level in place of another."""

    def options_at(failed: Outcome, _: Outcome) -> Options | None:
        options = failed.settings.options
        return replace(options, level=level) if options.level is beside and not failed.has_misfits else None

    return options_at


TRIALS: tuple[Trial, ...] = (
    _with_io,
    _at_level(Level.DEFAULT, beside=Level.UNSAFE_FORCE_ALL),
    _with_pins,
    _with_pins,
    _with_pins,
    _at_level(Level.TREAT_INFER_AS_DENY, beside=Level.DEFAULT),
    _at_level(Level.TENSOR_CORES_ONLY, beside=Level.DEFAULT),
)
"""The trials after a failed comparison, mildest first, up to the first that passes with something in half."""


def with_trials(outcome: Outcome, work: Work | None) -> Outcome:
    """Try flags if the comparison failed and no search ran; without `work` suggest none."""
    verdict = outcome.verdict
    if not (verdict is not None and verdict.is_far and (verdict.blame or verdict.misfits)):
        return outcome
    if work is None or outcome.tuned is not None:
        blame = replace(verdict.blame, keep_full=()) if verdict.blame else None
        return replace(outcome, verification=replace(verdict, blame=blame))
    if outcome.result.report.size_before > LARGE:
        return outcome
    trials: list[Tried] = []
    pinned = outcome
    for trial in TRIALS:
        options = trial(outcome, pinned)
        other = _compared(work, options) if options is not None else None
        if other is not None:
            trials.append(_trial_summary(outcome.settings.options, other))
        if trials and trials[-1].mends:
            break
        if trial is _with_pins:
            pinned = (
                other if other is not None and _helps(pinned, other) else replace(pinned, verification=None)
            )
    return replace(outcome, verification=replace(verdict, tried=tuple(trials)))


def _compared(work: Work, options: Options) -> Outcome | None:
    """Return the outcome with other options; None if these are refused, or nothing runs."""
    try:
        with work.elsewhere() as other:
            outcome = repair(other, options)
            return other.blame(outcome) if outcome.verdict is not None else None
    except AmpRewriteError:  # it contradicts a pin, or the time limit is reached
        return None


def _helps(before: Outcome, after: Outcome) -> bool:
    """Return whether pins helped: the error fell, or a node had lost values before."""
    old, new = before.verdict, after.verdict
    if old is None or new is None:
        return False
    had_loss = old.blame is not None and old.blame.first_lost is not None
    return had_loss or new.error <= NEARER * old.error


def _trial_summary(before: Options, outcome: Outcome) -> Tried:
    options, verdict = outcome.settings.options, outcome.verdict
    assert verdict is not None, "it was compared"
    return Tried(
        keep_full=options.pins.keep_full[len(before.pins.keep_full) :],
        level=options.level.value if options.level is not before.level else None,
        error=verdict.error,
        ok=verdict.ok,
        nodes=outcome.result.report.nodes,
        keep_io=options.keep_io[len(before.keep_io) :],
    )
