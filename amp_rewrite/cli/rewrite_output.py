"""What `amp-rewrite rewrite` prints of a result or a plan, and writes of it as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from amp_rewrite import explanation_sources
from amp_rewrite.advice import device_check
from amp_rewrite.advice.advice import Advice
from amp_rewrite.cli import exit_codes, metric_flags, next_steps, outcome_lines
from amp_rewrite.cli.fields_as_flags import as_argument, in_flags
from amp_rewrite.cli.job_reports import NOTHING_CHANGED, not_verified
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.console import Console
from amp_rewrite.coverage.assumptions import some
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.model import obsolete_data_files, writing
from amp_rewrite.placement.comparison import Comparison
from amp_rewrite.policy.named_policies import Policy
from amp_rewrite.repair import Outcome, Verification
from amp_rewrite.reporting import summary, terminal_rewrite
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.report import Report
from amp_rewrite.running import half_types
from amp_rewrite.running.verdict import Verdict


def print_result(
    console: Console,
    job: RewriteJob,
    outcome: Outcome,
    json_: Path | None,
    placed: Comparison | None,
    beside: Iterable[Path | None] = (),
) -> None:
    """Reports on a result, and sets the exit code; `placed` is for JSON alone, `beside` are other files that
    were written.
    """
    report, verdict = outcome.result.report, outcome.verification
    reason = not_verified(job, verdict)
    if json_ is not None:
        advice = explanation_sources.advise(outcome.result.model, report.half)
        tuned = {"tuning": outcome.tuned.to_json()} if outcome.tuned else {}
        _write_json(json_, report, verdict, reason, {**_told(advice, placed, job.seen), **tuned})
    terminal_rewrite.print_summary(console, report, str(outcome.result.model))
    if not console.quiet:
        terminal_rewrite.print_lines(console, data_lines(Path(outcome.result.model)))
    terminal_rewrite.print_lines(console, summary.observed_lines(job.seen))
    terminal_rewrite.print_lines(console, outcome_lines.lines(outcome, job.options.io))
    if not report.changed:
        terminal_rewrite.print_lines(console, _already_half(Path(outcome.result.model)))
    if reason == NOTHING_CHANGED:
        console.print(f"not compared with the original: {reason}")
    _print_verdict(console, verdict, per_node=job.comparing.per_node)
    _print_files(console, (json_, *beside))
    bad = isinstance(verdict, Verdict) and bool(reason)
    loud = Console(stderr=True) if bad and console.quiet else console
    terminal_rewrite.print_hints(loud, next_steps.after(job, outcome, is_bad=bad))
    metric_flags.refuse_failed(verdict)
    passed = verdict.ok if isinstance(verdict, Verdict) and not verdict.is_made_up else None
    exit_codes.end_rewrite(valid=report.ok, passed=passed, required=job.required)


def data_lines(model: Path) -> Iterator[SummaryLine]:
    """The files with the weights of a model that was written, which belongs beside them."""
    if files := sorted(file.name for file in obsolete_data_files.referenced_by(model)):
        yield SummaryLine("data", f"{some(files, _SHOWN)}: the weights, to be kept beside the model")


_SHOWN = 3
"""How many data files are named."""


def _print_files(console: Console, files: Iterable[Path | None]) -> None:
    """Names the files that were written beside the result."""
    if named := ", ".join(str(file) for file in files if file is not None):
        terminal_rewrite.print_lines(console, [SummaryLine("wrote", named)])


def _already_half(model: Path) -> Iterator[SummaryLine]:
    """That a model has half of its own, where it has."""
    found = half_types.half_of(model)
    if found is not None:
        counted = f"amp-rewrite coverage {as_argument(model)} counts it"
        yield SummaryLine("result", f"the model has {found.name} already ({counted})", is_whole=True)


def _told(advice: Advice, placed: Comparison | None, seen: Observed | None) -> dict[str, object]:
    placement = {"placement": placed.to_json()} if placed else {}
    calibration = {"calibration": seen.counts} if seen is not None else {}
    return {"advice": advice.to_json(), **placement, **calibration}


def _write_json(
    path: Path, report: Report, judged: Verification, reason: str, told: Mapping[str, object]
) -> None:
    verdict = judged.to_json() if isinstance(judged, Verdict) else None
    if isinstance(judged, AmpRewriteError):
        verdict = {"not_compared": in_flags(judged)}
    verified = {"verified": not reason, "not_verified": reason or None}
    plain = {**report.to_json(), "warnings": list(map(in_flags, report.warnings))}
    writing.write_json({**plain, **verified, "verification": verdict, **told}, path)


def _print_verdict(console: Console, verdict: Verification, *, per_node: bool) -> None:
    """Prints a verdict; a bad one, or why there is none, on standard error if all else is quiet."""
    loud = Console(stderr=console.quiet)
    if isinstance(verdict, AmpRewriteError):
        loud.print(f"not compared with the original: {in_flags(verdict)}")
    elif verdict is not None:
        shown = console if verdict.ok else loud
        terminal_rewrite.print_verdict(shown, verdict, per_node=per_node, hinted=False)


def print_plan(
    console: Console,
    analysis: Analysis,
    json_: Path | None,
    placed: Comparison | None,
    seen: Observed | None,
    beside: Iterable[Path | None] = (),
) -> None:
    """Reports on a plan that is not carried out; `placed` and `beside` as for a result."""
    if json_ is not None:
        advice = explanation_sources.advise_planned(analysis)
        _write_json(json_, analysis.report(), None, "--dry-run was given", _told(advice, placed, seen))
    terminal_rewrite.print_plan(console, analysis.plan)
    terminal_rewrite.print_lines(console, summary.match_lines(analysis.matched))
    terminal_rewrite.print_lines(console, summary.observed_lines(seen))
    terminal_rewrite.print_lines(console, summary.prediction_lines(analysis.report().prediction))
    for warning in (*analysis.warnings, *analysis.predicted):
        console.print(f"warning  {in_flags(warning)}")
    halves = sum(analysis.painting.halves)
    console.print(
        f"{halves:,} of {len(analysis.graph.units):,} units in {analysis.plan.half.name}, "
        f"{plural(len(analysis.plan.casts), 'Cast')}; no model was written"
    )
    _print_files(console, (json_, *beside))


def print_device(console: Console, policy: Policy | None, advise: Callable[[], Advice]) -> None:
    """Prints the check where a policy is given, unless nothing becomes half under it."""
    if policy is None or policy.compute is None or console.quiet:
        return
    told = device_check.lines(advise())
    terminal_rewrite.print_lines(console, (SummaryLine("device", text) for text in told))
