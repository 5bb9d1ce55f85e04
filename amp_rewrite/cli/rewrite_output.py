"""The reports on a rewrite or a plan: the summary in the terminal, JSON, the page, the plan for `--plan`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from amp_rewrite.bounds import bounding
from amp_rewrite.cli import comparison_flags, exit_codes, explanation_sources, next_steps, outcome_lines
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.html_and_plots import PageMaker, Placing, ReportFiles
from amp_rewrite.cli.progress import tell
from amp_rewrite.cli.rewrite_job import CANNOT_RUN, RewriteJob
from amp_rewrite.console import Console
from amp_rewrite.coverage.advice import Advice
from amp_rewrite.coverage.counts import assumptions, some
from amp_rewrite.errors import AmpRewriteError, ModelError, TimeLimitError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.flops import flop_count
from amp_rewrite.model import external_data, writing
from amp_rewrite.pipeline import Result
from amp_rewrite.placement.comparison import Comparison
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.reporting import summary, terminal
from amp_rewrite.reporting.charts import Plan, Search
from amp_rewrite.reporting.html_report import Evidence, HtmlReport
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.report import Report, SummaryLine
from amp_rewrite.running import latency, run_arguments
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.latency import Bench, TimedModel
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.text import plural
from amp_rewrite.tuning.repair import Outcome, Verification
from amp_rewrite.tuning.tune import Tuned


class JobReports:
    """The reports of a job on a model whose open dimensions have the sizes `dims`: its plan goes to `plan`,
    its page to `files`, placed by `placing`.
    """

    def __init__(self, dims: Dims, plan: Path | None, files: ReportFiles, placing: Placing | None) -> None:
        self._plan, self._files = plan, files
        self._pages = PageMaker(dims, placing)

    def record(self, analysis: Analysis, *, ranges: bool, quick_ranges: bool) -> None:
        """Takes what the reports show of an analysis, before its model is changed: its bounds with `ranges`,
        and with `quick_ranges` where they cost little.
        """
        if self._plan is not None:
            _save_plan(self._plan, analysis)
        if ranges or (quick_ranges and bounding.is_quick(analysis.facts)):
            analysis.ranges()
        if self._files.asked:
            self._pages.record(analysis)

    def write(self, job: RewriteJob, done: Analysis | Outcome, *, latency: bool) -> Comparison | None:
        """Writes the page of what was done, or planned; what CUDA's provider executes, where it is placed."""
        if not self._files.asked:
            return None
        page = self._page(job, done, latency=latency)
        self._files.write(page)
        return page.placement.compared if page.placement else None

    def _page(self, job: RewriteJob, done: Analysis | Outcome, *, latency: bool) -> HtmlReport:
        if isinstance(done, Analysis):
            return self._pages.of_plan(job.model, done)
        shown = evidence(job, done, timed=latency)
        return self._pages.page(job.model, done.result.report, shown, Path(done.result.model))


def _save_plan(path: Path, analysis: Analysis) -> None:
    """Writes the plan, with the FLOPs of the nodes, as it may be explained without the model."""
    counted = flop_count.count(analysis.loaded.model, analysis.graph.types, analysis.options.dims.dims)
    text = plan_files.dump(
        analysis.graph,
        analysis.painting,
        analysis.plan,
        analysis.options,
        counted.flops,
        tuple(assumptions(counted)),
    )
    staging.write(text.encode(), path)


NOTHING_CHANGED = "nothing changed"


def evidence(job: RewriteJob, outcome: Outcome, *, timed: bool) -> Evidence:
    """The verdict with its blame, observed magnitudes, and if `timed` latencies."""
    found = Evidence(
        bench=_latencies(job, outcome.result) if timed else None,
        search=_search(outcome.tuned),
        notes=tuple(outcome_lines.lines(outcome, job.options.io)),
    )
    verdict = job.blame(outcome, per_node=True).verification
    if isinstance(verdict, Verdict):
        return replace(found, verdict=verdict, observed=job.seen or job.observe(verdict))
    reason = not_verified(job, verdict)
    told = reason if reason == NOTHING_CHANGED else f"not compared with the original: {reason}"
    return replace(found, unverified=told)


def _search(tuned: Tuned | None) -> Search:
    """What a search measured, as the page draws it."""
    if tuned is None:
        return Search()
    plans = [Plan(point.seconds, point.error, point.half) for point in tuned.walked]
    return Search(plans, tuned.target, tuned.sensitivity)


def not_verified(job: RewriteJob, verdict: Verification) -> str:
    """Why the result is not known to compute what the model does; empty where it is."""
    if isinstance(verdict, Verdict):
        return "; ".join(verdict.faults)
    if verdict is not None:
        return in_flags(verdict)
    return "--no-verify was given" if job.original is None else NOTHING_CHANGED


def _latencies(job: RewriteJob, result: Result[Any]) -> Bench | None:
    """The latencies of both models as `bench` measures them by default; None where they cannot be run."""
    tell(job.progress, "measure")
    libraries, pair = job.comparing.libraries, (job.model, Path(result.model))
    subjects = [TimedModel(str(path), path, libraries=libraries) for path in pair]
    try:
        with job.limit.running():
            samples = list(feeds.feeds(job.model, job.data))
            return latency.measure(subjects, samples, run_arguments.device(None))
    except CANNOT_RUN:
        return None


def settle(job: RewriteJob, outcome: Outcome, json_: Path | None, placed: Comparison | None) -> Outcome:
    """Writes the outcome as JSON, moves all files into place, and returns it with the path of its model.

    Raises TimeLimitError where the time was over before a verdict was known that a file may be replaced for.
    """
    report, verdict = outcome.result.report, outcome.verification
    refuse_unjudged(job.limit, verdict, outcome.result.model)
    if json_ is not None:
        advice = explanation_sources.advise_model(outcome.result.model, report.half, job.options.dims.dims)
        tuned = {"tuning": outcome.tuned.to_json()} if outcome.tuned else {}
        reason = not_verified(job, verdict)
        _write_json(json_, report, verdict, reason, {**_told(advice, placed, job.seen), **tuned})
    model = staging.current().commit(outcome.result.model)
    return replace(outcome, result=replace(outcome.result, model=model))


def refuse_unjudged(limit: TimeLimit, verdict: Verification, result: Path) -> None:
    """TimeLimitError for a result that would replace a file without a good verdict, or all that is done about
    a bad one, as the time was over.
    """
    is_good = isinstance(verdict, Verdict) and verdict.ok
    if limit.is_over and not is_good and staging.current().replaces(result):
        taken = f"running the models took longer than {limit.name} allows ({limit.seconds:g} s)"
        raise TimeLimitError(
            f"{taken}, and the file there stays",
            where=result.name,
            remedy=f"give {limit.name} more seconds",
        )


def print_result(
    console: Console, job: RewriteJob, outcome: Outcome, files: Iterable[Path | None] = ()
) -> None:
    """Reports on a result that is in place, and sets the exit code; `files` were written beside it."""
    report, verdict = outcome.result.report, outcome.verification
    _print_first(Console(stderr=True), job, outcome)
    reason = not_verified(job, verdict)
    if report.obstacle is not None and report.obstacle.already:
        console.print(str(outcome.result.model))
        terminal.print_lines(console, (line for line in summary.lines(report) if line.name in _KEPT))
    else:
        terminal.print_summary(console, report, str(outcome.result.model))
    if not console.quiet:
        terminal.print_lines(console, data_lines(Path(outcome.result.model)))
    terminal.print_lines(console, summary.observed_lines(job.seen))
    terminal.print_lines(console, outcome_lines.search_lines(outcome))
    if reason == NOTHING_CHANGED:
        console.print(f"not compared with the original: {reason}")
    _print_verdict(console, verdict, per_node=job.comparing.per_node)
    _print_files(console, files)
    bad = isinstance(verdict, Verdict) and bool(reason)
    loud = Console(stderr=True) if bad and console.quiet else console
    terminal.print_hints(loud, next_steps.after(job, outcome, is_bad=bad))
    comparison_flags.refuse_failed(verdict)
    passed = verdict.ok if isinstance(verdict, Verdict) and not verdict.is_made_up else None
    is_half = report.obstacle is None or report.obstacle.already
    valid = report.ok and (is_half or not job.needs_half)
    exit_codes.end_rewrite(valid=valid, passed=passed, required=job.required)


def data_lines(model: Path) -> Iterator[SummaryLine]:
    """The files with the weights of a model that was written, which belongs beside them."""
    if files := sorted(file.name for file in external_data.referenced_by(model)):
        yield SummaryLine("data", f"{some(files, _SHOWN)}: the weights, to be kept beside the model")


_KEPT = ("matched", "observed", "tuned", "earlier", "faint", "warning", "BROKEN")
"""The lines of a summary that hold for a model that was half already."""

_SHOWN = 3
"""How many data files are named."""


def _print_files(console: Console, files: Iterable[Path | None]) -> None:
    """Names the files that were written beside the result."""
    if named := ", ".join(str(file) for file in files if file is not None):
        terminal.print_lines(console, [SummaryLine("wrote", named)])


def _print_first(loud: Console, job: RewriteJob, outcome: Outcome) -> None:
    """Says on standard error that the original does not load, and that nothing became half."""
    report, verdict, result = outcome.result.report, outcome.verification, Path(outcome.result.model)
    if _is_refused(verdict):
        loud.print(f"not compared with the original, which does not load: {in_flags(verdict)}")
    if report.obstacle is not None:
        loud.print(outcome_lines.without_half(outcome, job.options.io, str(job.model), str(result)))


def _is_refused(verdict: Verification) -> bool:
    return isinstance(verdict, ModelError) and verdict.problem.startswith("onnxruntime refuses the model")


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
    if isinstance(verdict, AmpRewriteError) and not _is_refused(verdict):
        loud.print(f"not compared with the original: {in_flags(verdict)}")
    elif isinstance(verdict, Verdict):
        shown = console if verdict.ok else loud
        terminal.print_verdict(shown, verdict, per_node=per_node, hinted=False)


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
    terminal.print_plan(console, analysis.plan)
    terminal.print_lines(console, summary.match_lines(analysis.matched))
    terminal.print_lines(console, summary.observed_lines(seen))
    terminal.print_lines(console, summary.prediction_lines(analysis.report().prediction))
    for warning in (*analysis.warnings, *analysis.predicted):
        console.print(f"warning  {in_flags(warning)}")
    halves = sum(analysis.painting.halves)
    console.print(
        f"{halves:,} of {len(analysis.graph.units):,} units in {analysis.plan.half.name}, "
        f"{plural(len(analysis.plan.casts), 'Cast')}; no model was written"
    )
    _print_files(console, (json_, *beside))
