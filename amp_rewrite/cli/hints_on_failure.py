"""What to run next where the comparison of a result failed."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.cli import next_commands
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.policy.options import Level
from amp_rewrite.reporting import verdict_text
from amp_rewrite.rewrite_and_verify import Outcome
from amp_rewrite.running.verdict import Verdict


def hints(job: RewriteJob, outcome: Outcome, verdict: Verdict) -> Iterator[str]:
    """Flags that were tried and help, and else a search; always something for outputs too far off."""
    yield from verdict_text.hints(verdict)
    if verdict.is_far and not any(tried.ok for tried in verdict.tried):
        yield _further(job, outcome, verdict)


def _further(job: RewriteJob, outcome: Outcome, verdict: Verdict) -> str:
    if job.in_place:
        return "the original, and -o FILE in place of --in-place   # which has replaced it by what failed"
    if outcome.tuned is not None and outcome.tuned.is_below_noise:
        return f"--tolerance error={_above(verdict.error)}   # which this result is within"
    note = _note(job, outcome)
    return f"{next_commands.tune(job.model, job.output, '--budget', _longer(job))}   # {note}"


def _note(job: RewriteJob, outcome: Outcome) -> str:
    if outcome.tuned is not None:
        return "a longer search"
    if job.replay is not None:
        return "a search for another plan"
    forced = job.options.level is Level.UNSAFE_FORCE_ALL
    return f"a search{f', without --level {job.options.level.value}' if forced else ''}"


def _longer(job: RewriteJob) -> str:
    """A budget that is larger than the one of the job."""
    minutes = max(_MINUTES, 2 * job.tuning.budget / 60)
    return f"{minutes:.12g}m"


_MINUTES = 10.0


def _above(error: float) -> str:
    """A bound of two digits that an error is within."""
    digits = f"{error:.1e}"
    return digits if float(digits) >= error else f"{float(digits) * 1.1:.1e}"
