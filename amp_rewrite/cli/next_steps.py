"""What to run next: commands, and in words the flags that go with them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.flag_builders import written
from amp_rewrite.cli.help_sections import SECTIONS
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.pipeline import Result
from amp_rewrite.policy.options import IOTypes, Level
from amp_rewrite.repair import Outcome
from amp_rewrite.reporting import verdict_text
from amp_rewrite.running import sessions
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.tuning.search import Prefer
from amp_rewrite.tuning.tune import Tuned


def after(job: RewriteJob, outcome: Outcome, *, is_bad: bool) -> Iterator[str]:
    """Flags and commands after a job whose verdict is bad, whose search left nothing in half, or that left
    nodes in float32.
    """
    verdict, tuned = outcome.verification, outcome.tuned
    if is_bad:
        assert isinstance(verdict, Verdict), "what is bad was compared"
        yield from _after_failure(job, outcome, verdict)
    elif tuned is not None and outcome.is_tuned and tuned.is_float32:
        if bound := looser(tuned):
            yield f"{bound}   # the default plan is within that"
        if job.tuning.prefer is Prefer.TIME and outcome.result.report.gated:
            prefer = f"--prefer {Prefer.FLOPS.value}"
            yield tune(job.model, prefer, why="as much in half as the error allows, whatever the time")
    elif outcome.result.report.nodes.full:
        yield _explain(job, outcome.result)


def tune(model: Path, *flags: str, why: str) -> str:
    """The search for a plan for a model, as a command with what has to be added, and a note."""
    return f"{' '.join(('amp-rewrite tune', as_argument(model), *flags))}   # {why}{_like_this()}"


def _like_this() -> str:
    context = click.get_current_context(silent=True)
    flags = written(context, (param.name or "" for param in context.command.params)) if context else {}
    return "; with the other flags of this command" if any(name != "model" for name in flags) else ""


_DECIDING = frozenset(
    name
    for title in ("What becomes half", "Value ranges", "Changes to the graph")
    for name in SECTIONS[title]
)


def _explain(job: RewriteJob, result: Result[Any]) -> str:
    """What says why nodes stay float32, as this command decided it: the result, if it carries its reasons, or
    the model where nothing but the defaults decided; a plan has what runs showed.
    """
    report, context = result.report, click.get_current_context(silent=True)
    observed = bool(report.observed or report.faint or report.sensitive)
    decided = observed or bool(context and written(context, _DECIDING))
    why = "   # why nodes stay float32"
    if report.changed and job.options.metadata:
        return f"amp-rewrite explain {as_argument(Path(result.model) if decided else job.model)}{why}"
    if not observed:
        return f"amp-rewrite explain {as_argument(job.model)}{why}{_like_this()}"
    plan = as_argument(Path(result.model).with_suffix(".plan.json"))
    again = f"amp-rewrite {as_argument(job.model)} --observe always --dry-run --save-plan {plan}"
    return f"{again} && amp-rewrite explain {plan}{why}{_like_this()}"


def _after_failure(job: RewriteJob, outcome: Outcome, verdict: Verdict) -> Iterator[str]:
    """Flags that were tried and help, and else a search; always something for outputs too far off."""
    as_it_is = job.in_place or job.replay is not None  # flags for another result are no use
    hints = [hint for hint in verdict_text.hints(verdict) if not (as_it_is and hint.startswith(_KEEP_IO))]
    yield from hints
    is_mended = any(tried.ok for tried in verdict.tried) or any(hint.startswith(_KEEP_IO) for hint in hints)
    if verdict.is_far and not is_mended:
        yield _further(job, outcome, verdict)


_KEEP_IO = "--keep-io"


def of_comparison(verdict: Verdict, original: Path, rewritten: Path) -> Iterator[str]:
    """The same for a result of any tool, which `verify` compared: commands for the original."""
    half = sessions.half_of(rewritten)
    to = f" --to {half.name}" if half not in (None, FLOAT16) else ""
    for hint in verdict_text.hints(verdict):
        is_pin, again = hint.startswith("--keep"), f"amp-rewrite {as_argument(original)} {hint}{to}"
        yield f"{again}   # not compared: {_why(verdict)}" if is_pin else hint
    if verdict.is_far:
        search = f"amp-rewrite tune {as_argument(original)}{to}"
        yield f"{search}   # searches for what to keep in float32"
        pair = f"{as_argument(original)} {as_argument(rewritten)}"
        yield f"amp-rewrite certify {pair}   # says whether they differ in more than precision"


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
    tuned = outcome.tuned
    if job.in_place:
        return "the original, and -o FILE in place of --in-place   # which has replaced it by what failed"
    if tuned is not None and tuned.is_below_noise and verdict.error <= _WIDEST:
        return f"{_bounded(verdict.error)}   # this result is within that"
    if tuned is not None and not tuned.sites:
        return f"{_bounded(verdict.error)}   # only inputs and outputs are half; this result is within that"
    ports = (word for port in verdict.misfits for word in (_KEEP_IO, shlex.quote(port.name)))
    flags = ("--io", IOTypes.HALF.value, *ports) if verdict.misfits else ()
    minutes = max(_MINUTES, 2 * (job.tuning.budget or 0.0) / 60)
    return tune(job.model, *flags, "--budget", f"{minutes:.12g}m", why=_note(job, outcome))


def _note(job: RewriteJob, outcome: Outcome) -> str:
    if outcome.tuned is not None:
        return "a search, without --force-half" if job.options.pins.force_half else "a longer search"
    if job.replay is not None:
        return "a search for another plan"
    forced = job.options.level is Level.UNSAFE_FORCE_ALL
    return f"a search{f', without --level {job.options.level.value}' if forced else ''}"


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
    before = [f"--tolerance {text}" for text in params.get("tolerance", ()) if text.startswith("error=")]
    instead = f"in place of {' '.join(before)}: " if before else ""
    return f"{instead}--tolerance error={_above(error)}"


def _above(error: float) -> str:
    """A bound of two digits that an error is within."""
    digits = f"{error:.1e}"
    return digits if float(digits) >= error else f"{float(digits) * 1.1:.1e}"
