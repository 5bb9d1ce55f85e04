"""What to run next where the comparison of a result failed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from amp_rewrite.cli import flags_of_result, next_commands
from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.policy.options import IOTypes, Level
from amp_rewrite.repair import Outcome
from amp_rewrite.reporting import verdict_text
from amp_rewrite.running import sessions
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.tuning.tune import Tuned


def hints(job: RewriteJob, outcome: Outcome, verdict: Verdict) -> Iterator[str]:
    """Flags that were tried and help, and else a search; always something for outputs too far off."""
    as_it_is = job.in_place or job.replay is not None  # flags for another result are no use
    given = [hint for hint in verdict_text.hints(verdict) if not (as_it_is and hint.startswith(_KEEP_IO))]
    yield from given
    is_said = any(tried.ok for tried in verdict.tried) or any(hint.startswith(_KEEP_IO) for hint in given)
    if verdict.is_far and not is_said:
        yield _further(job, outcome, verdict)


def of_comparison(verdict: Verdict, original: Path, rewritten: Path) -> Iterator[str]:
    """The same for a result of any tool, which `verify` compared: commands for the original, with the flags
    that the result was made with, as far as it shows them.
    """
    half = sessions.half_of(rewritten)
    to = ("--to", half.name) if half not in (None, FLOAT16) else ()
    known = flags_of_result.beside(rewritten, verdict.blame) if verdict.is_far else ()
    flags = [change.flag for change in known]
    for hint in verdict_text.hints(verdict):
        is_pin, again = hint.startswith(_KEEPING), next_commands.rewrite(original, hint, *flags, *to)
        yield f"{again}   # not tried: {_why(verdict)}" if is_pin else hint
    if verdict.is_far:
        tuned = (change.flag for change in known if change.subject != Level.UNSAFE_FORCE_ALL.value)
        yield f"{next_commands.tune(original, None, *tuned, *to)}   # searches for what to keep in float32"
        pair = f"{as_argument(original)} {as_argument(rewritten)}"
        yield f"amp-rewrite certify {pair}   # says whether they differ in more than precision"


_KEEP_IO = "--keep-io"
_KEEPING = ("--keep-full", _KEEP_IO)


def _why(verdict: Verdict) -> str:
    """Why these nodes, inputs or outputs are named."""
    blame = verdict.blame
    if verdict.misfits:
        return "half cannot hold that"
    if blame is not None and blame.first_lost is not None:
        return "values are lost here first"
    measured = blame is not None and any(error.effect for error in blame.nodes)
    return "rounding there adds most to the outputs" if measured else "their own error is the largest"


def _further(job: RewriteJob, outcome: Outcome, verdict: Verdict) -> str:
    if job.in_place:
        return "the original, and -o FILE in place of --in-place   # which has replaced it by what failed"
    if outcome.tuned is not None and outcome.tuned.is_below_noise and verdict.error <= _WIDEST:
        return f"{_bounded(verdict.error)}   # this result is within that"
    if outcome.tuned is not None and not outcome.tuned.sites:
        return f"{_bounded(verdict.error)}   # only inputs and outputs are half; this result is within that"
    without = ("force_half",) if _is_pinned(job, outcome) else ()
    flags = (*_keeping(verdict), "--budget", _longer(job))
    again = next_commands.tune(job.model, job.output, *flags, without=without)
    return f"{again}   # {_note(job, outcome)}"


def _is_pinned(job: RewriteJob, outcome: Outcome) -> bool:
    """Whether a search failed that was not free to keep all in float32."""
    return outcome.tuned is not None and bool(job.options.pins.force_half)


def _keeping(verdict: Verdict) -> Iterator[str]:
    """The flags that keep in float32 what cannot be half; those of a plan stand in it, and not here."""
    yield from ("--io", IOTypes.HALF.value) if verdict.misfits else ()
    for port in verdict.misfits:
        yield from (_KEEP_IO, shlex.quote(port.name))


def _note(job: RewriteJob, outcome: Outcome) -> str:
    if _is_pinned(job, outcome):
        return "a search, without --force-half"
    if outcome.tuned is not None:
        return "a longer search"
    if job.replay is not None:
        return "a search for another plan"
    forced = job.options.level is Level.UNSAFE_FORCE_ALL
    return f"a search{f', without --level {job.options.level.value}' if forced else ''}"


def _longer(job: RewriteJob) -> str:
    """A budget that is larger than the one of the job."""
    minutes = max(_MINUTES, 2 * (job.tuning.budget or 0.0) / 60)
    return f"{minutes:.12g}m"


_MINUTES = 10.0


def looser(tuned: Tuned) -> str:
    """The bound that the result of the default plan is within; empty where another metric was bounded, or
    where nobody would want so wide a bound.
    """
    error = tuned.walked[0].error if tuned.walked and tuned.bound == "error" else math.inf
    return _bounded(error) if error <= _WIDEST else ""


_WIDEST = 0.1
"""An output that is farther off than a tenth of itself is another output."""


def _bounded(error: float) -> str:
    """The flag of this command that bounds the error, with a bound that an error is within: added, or in
    place of one that was written, which a second one would contradict.
    """
    context = click.get_current_context(silent=True)
    params = {} if context is None else context.params
    if params.get("max_error") is not None:
        return f"--max-error {_above(error)}"
    written = [f"--tolerance {text}" for text in params.get("tolerance", ()) if text.startswith("error=")]
    instead = f"in place of {' '.join(written)}: " if written else ""
    return f"{instead}--tolerance error={_above(error)}"


def _above(error: float) -> str:
    """A bound of two digits that an error is within."""
    digits = f"{error:.1e}"
    return digits if float(digits) >= error else f"{float(digits) * 1.1:.1e}"
