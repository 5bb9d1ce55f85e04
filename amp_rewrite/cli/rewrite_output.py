"""The reports on a rewrite or a plan: the summary in the terminal, JSON, the page, the plan for `--plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from amp_rewrite import text
from amp_rewrite.bounds import bounding
from amp_rewrite.cli import exit_codes, next_steps
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.html_page import PageMaker
from amp_rewrite.cli.output_files import ResultFlags
from amp_rewrite.cli.records import refuse_failed
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.console import Console
from amp_rewrite.conversion import refuse_unjudged
from amp_rewrite.costs import flop_count
from amp_rewrite.coverage import counts
from amp_rewrite.coverage.counts import Coverage, assumptions
from amp_rewrite.errors import AmpRewriteError, ModelError
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.model import external_data, writing
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.placement import tensorrt
from amp_rewrite.placement.placement import Placement
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.stopwatch import tell
from amp_rewrite.reporting import page, summary, terminal
from amp_rewrite.reporting.page import RunEvidence
from amp_rewrite.reporting.terminal import NamedOutcome
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.report import Obstacle, Report, SummaryLine
from amp_rewrite.running import sessions, verdict_text
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.text import plural, some
from amp_rewrite.tuning import tune as tuning
from amp_rewrite.tuning.comparing import attempted
from amp_rewrite.tuning.repair import NOTHING_CHANGED, Outcome, Verification, coverage_of


def carry_out(job: RewriteJob, *, is_dry: bool = False) -> Callable[[], None]:
    """Run a job, or plan it if `is_dry`, write its files and move them into place.

    Return the function that prints its report.
    """
    files = job.files
    pages = PageMaker(job.options.dims.dims)

    def record(analysis: Analysis) -> None:
        """Record the analysis for the files, before its model is changed."""
        if (plan := files.saved("plan")) is not None:
            _save_plan(plan, analysis)
        if files.json_ is not None or (not is_dry and bounding.is_quick(analysis.facts)):
            analysis.ranges()
        if files.html is not None:
            pages.record(analysis)

    job = replace(job, on_plan=record)
    if is_dry:
        analysis = job.plan()
        if files.html is not None:
            page.write(pages.of_plan(job.model, analysis), files.html)
        return partial(_print_plan, job, analysis)
    outcome, coverage = job.run(), None
    if files.html is not None:
        result = outcome.result
        coverage = counts.measure(result.model, job.options.dims.dims)
        page.write(pages.page(job.model, result.report, evidence(job, outcome), coverage), files.html)
    return partial(_print_result, job, *_settled(job, outcome, coverage))


def _save_plan(path: Path, analysis: Analysis) -> None:
    """Write the plan with the FLOPs of its nodes, so that it can be explained without the model."""
    flop_counts = flop_count.count(analysis.loaded.model, analysis.graph.types, analysis.options.dims.dims)
    plan = analysis.saved_plan(flop_counts.flops, tuple(assumptions(flop_counts)))
    staging.write(plan_files.dump(plan).encode(), path)


def evidence(job: RewriteJob, outcome: Outcome) -> RunEvidence:
    """Collect the verdict with its blame, and observed magnitudes."""
    measurements = RunEvidence(
        magnitudes=page.magnitudes(job.seen),
        notes=tuple(outcome_lines(outcome, job.options.io)),
    )
    blamed = job.blame(outcome, for_page=True)
    if blamed.verdict is not None:
        return replace(measurements, verdict=blamed.verdict)
    reason = in_flags(blamed.unverified)
    explanation = reason if reason == NOTHING_CHANGED else f"not compared with the original: {reason}"
    return replace(measurements, unverified=explanation)


def _settled(job: RewriteJob, outcome: Outcome, coverage: Coverage | None) -> tuple[Outcome, Coverage | None]:
    """Write the outcome as JSON, commit all files, and return the outcome with the path of its model, and the
    coverage of that, if it was measured.

    Raises TimeLimitError where the time limit expired before a verdict that justifies replacing a file, and
    EngineError where the job asks for a result that TensorRT compiles, and this one it refuses.
    """
    refuse_unjudged(job.limit, outcome.verification, outcome.result.model)
    if job.compiles:
        tell(job.progress, "compile")
        result = Path(outcome.result.model)
        job.engines.append(tensorrt.compile_result(job.model, result, job.options.dims.dims))
    if job.files.json_ is not None:
        coverage = coverage or coverage_of(outcome)
        engine = {"engine": job.engines[0].to_json()} if job.engines else {}
        data = {**outcome.to_json(coverage), **engine, "not_verified": in_flags(outcome.unverified) or None}
        if isinstance(outcome.verification, AmpRewriteError):
            data["verification"] = {"not_compared": in_flags(outcome.verification)}
        _write_json(job.files.json_, data, job.seen)
    model = staging.current().commit(outcome.result.model)
    return replace(outcome, result=replace(outcome.result, model=model)), coverage


def _print_result(job: RewriteJob, outcome: Outcome, coverage: Coverage | None) -> None:
    """Print the report on a committed result and set the exit code."""
    console = job.printing.console
    report, verdict = outcome.result.report, outcome.verification
    _print_first(Console(stderr=True), job, outcome)
    reason = in_flags(outcome.unverified)
    terminal.print_lines(console, _rewrite_lines(job, outcome))
    if not console.quiet:
        terminal.print_lines(console, data_lines(Path(outcome.result.model)))
    terminal.print_lines(console, map(_engine_line, job.engines))
    _print_files(console, job.files)
    verdict_ok = verdict.ok if isinstance(verdict, Verdict) and not verdict.is_synthetic else None
    is_half = report.obstacle is None or report.obstacle.already
    valid = report.ok and (is_half or "half" not in job.asked.required)
    bad = isinstance(verdict, Verdict) and bool(reason)
    if isinstance(verdict, AmpRewriteError) and not _is_refused(verdict):
        Console(stderr=console.quiet).print(f"not compared with the original: {reason}")
    loud = Console(stderr=True) if bad and console.quiet else console
    if not loud.quiet:
        is_open = isinstance(verdict, Verdict) and not verdict.is_synthetic
        is_bad = not valid or (job.required and not is_open)
        _print_conclusion(loud, job, outcome, reason, coverage, is_valid=not is_bad)
    terminal.print_hints(loud, next_steps.after(job, outcome, is_bad=bad))
    refuse_failed(verdict)
    exit_codes.end_rewrite(valid=valid, verdict_ok=verdict_ok, required=job.required)


def _rewrite_lines(job: RewriteJob, outcome: Outcome) -> Iterator[SummaryLine]:
    """Yield the lines above the comparison: those on flags and warnings, and with --verbose all."""
    report = outcome.result.report
    if job.printing.verbose:
        yield from summary.seconds(report)
    is_whole = report.obstacle is None or not report.obstacle.already
    names = None if job.printing.verbose and is_whole else _KEPT if job.printing.verbose else summary.BRIEF
    yield from (line for line in summary.lines(before_speed(report)) if names is None or line.name in names)
    yield from summary.observed_lines(job.seen)
    story = tuple(_story(outcome)) if report.obstacle is None else ()
    yield from story
    if not story or job.printing.verbose or job.tuning.is_requested:
        yield from _search_lines(outcome)


def before_speed(report: Report) -> Report:
    """Return the report without the warning that half does not pay, which the conclusion says again."""
    said = [] if report.gated else [*map(in_flags, sentences.slowness(report.prediction, gated=False))]
    return replace(report, warnings=tuple(each for each in report.warnings if in_flags(each) not in said))


def speed(report: Report) -> list[str]:
    """Return the predicted speed in a sentence of the conclusion; empty without one."""
    if report.prediction is None or report.gated:
        return []
    return [in_flags(sentences.speed(report.prediction))]


def _story(outcome: Outcome) -> Iterator[SummaryLine]:
    """Yield the line on a repair: the verdict on the first attempt, and what a better one cost."""
    first, after = outcome.first, outcome.result.report
    if first is None or not isinstance(first.verification, Verdict):
        return
    before = first.result.report
    if before.nodes == after.nodes and before.rescaled == after.rescaled:
        return
    speeds = [f"{each.speedup:.1f}" for each in (before.prediction, after.prediction) if each is not None]
    cost = f", predicted {' -> '.join(speeds)} times as fast" if len(set(speeds)) > 1 else ""
    verdict = verdict_text.conclusion(first.verification)
    error = verdict_text.largest(first.verification, is_brief=True)
    yield SummaryLine("repair", f"first attempt: {verdict} with {error}; {_change(before, after)}{cost}")


def _change(before: Report, after: Report) -> str:
    """Return what a repair changed: values stored times powers of two, and nodes in float32."""
    back = before.nodes.half + before.nodes.mixed - after.nodes.half - after.nodes.mixed
    parts = ["stored values times powers of two"] if before.rescaled != after.rescaled else []
    parts += [f"put {plural(back, 'node')} back to float32"] if back > 0 else []
    return " and ".join(parts) or "chose other nodes for float32"


def _in_half(coverage: Coverage, half: str) -> Iterator[str]:
    """Yield the share of FLOPs in half, of those that are known, if any are; for less than half of them, that
    the result is mostly float32.
    """
    if (share := coverage.flops.share) is not None:
        unknown = any(node.precision is not counts.Precision.OTHER for node in coverage.unknown)
        mostly = "mostly float32: " if share < 1 / 2 else ""
        yield f"{mostly}{text.share(share)} of {'known ' if unknown else ''}FLOPs in {half}"


def _print_conclusion(
    console: Console,
    job: RewriteJob,
    outcome: Outcome,
    reason: str,
    coverage: Coverage | None,
    *,
    is_valid: bool,
) -> None:
    """Print the comparison and the last lines: the verdict, sizes, FLOPs, the largest error, the speed."""
    report, verdict, result = outcome.result.report, outcome.verification, outcome.result.model
    in_half: list[str] = []
    if report.obstacle is None:
        coverage = coverage or coverage_of(outcome)
        in_half += [] if coverage is None else _in_half(coverage, report.half)
    sizes = [summary.sizes(report)] if reason != NOTHING_CHANGED else []
    notes = [
        *speed(report),
        *(_not_on_the_cpu(job, report, Path(result)) if reason != NOTHING_CHANGED else ()),
    ]
    subject = NamedOutcome(str(result), (*sizes, *in_half), notes)
    if isinstance(verdict, Verdict):
        terminal.print_verdict(
            console,
            verdict,
            subject,
            is_valid=is_valid,
            is_verbose=job.printing.verbose,
            per_node=job.judging.per_node,
        )
        return
    label = "unchanged" if reason == NOTHING_CHANGED else "not compared"
    if reason == NOTHING_CHANGED:
        subject = replace(subject, notes=[f"not compared with the original: {reason}"])
    terminal.print_conclusion(console, label if is_valid else "FAIL", subject)


def _not_on_the_cpu(job: RewriteJob, report: Report, result: Path) -> Iterator[str]:
    """Yield that onnxruntime's CPU provider has no kernels for a bfloat16 result, whose comparison emulates
    half; nothing for a large one, of which a session would take a copy.
    """
    is_new = report.half == BFLOAT16.name and report.obstacle is None
    if not is_new or not job.is_compared or report.size_after > sessions.LARGE:
        return
    error = attempted(job.limit, lambda: sessions.open_session(result, libraries=job.judging.libraries))
    if isinstance(error, ModelError):
        why = error.problem.partition("(")[2].removesuffix(")")
        yield f"onnxruntime's CPU provider does not open it: {why}"


def _engine_line(engine: Placement) -> SummaryLine:
    size = f"{plural(engine.nodes, 'layer')}, {(engine.engine_bytes or 0) / 1e6:,.1f} MB"
    return SummaryLine("engine", f"TensorRT for RTX {tensorrt.version()} compiles it: {size}")


def data_lines(model: Path) -> Iterator[SummaryLine]:
    """Yield a line on the external data files of a written model, which must stay beside it."""
    if files := sorted(file.name for file in external_data.referenced_by(model)):
        yield SummaryLine("data", f"{some(files, _SHOWN)}: the weights, to be kept beside the model")


_KEPT = ("matched", "observed", "tuned", "earlier", "outputs", "warning", "BROKEN")
"""The lines of a summary that apply to a model that was half already."""

_SHOWN = 3
"""The maximum number of data files that a line names."""


def _print_files(console: Console, files: ResultFlags) -> None:
    if files.names:
        terminal.print_lines(console, [SummaryLine("wrote", files.names)])


def _print_first(loud: Console, job: RewriteJob, outcome: Outcome) -> None:
    """Print on standard error that the original does not load, or that nothing became half."""
    report, verdict, result = outcome.result.report, outcome.verification, Path(outcome.result.model)
    if _is_refused(verdict):
        loud.print(f"not compared with the original, which does not load: {in_flags(verdict)}")
    if report.obstacle is not None:
        loud.print(without_half(outcome, job.options.io, str(job.model), str(result)))


def _is_refused(verdict: Verification) -> bool:
    return isinstance(verdict, ModelError) and verdict.problem.startswith("onnxruntime refuses the model")


def _write_json(path: Path, outcome: dict[str, Any], observations: Observed | None) -> None:
    calibration = {"calibration": observations.counts} if observations is not None else {}
    writing.write_json({**outcome, **calibration}, path)


def _print_plan(job: RewriteJob, analysis: Analysis) -> None:
    """Print the report on a dry run."""
    console = job.printing.console
    if job.files.json_ is not None:
        report = analysis.report()
        plain = {**report.to_json(), "warnings": list(map(in_flags, report.warnings))}
        unverified = {"verified": False, "not_verified": "--dry-run was given", "verification": None}
        _write_json(job.files.json_, {**plain, **unverified}, job.seen)
    terminal.print_plan(console, analysis.plan)
    terminal.print_lines(console, summary.match_lines(analysis.matched))
    terminal.print_lines(console, summary.observed_lines(job.seen))
    terminal.print_lines(console, summary.rescaled_lines(analysis.report()))
    report = analysis.report()
    terminal.print_lines(console, (SummaryLine("speed", text) for text in speed(report)))
    warnings = map(in_flags, before_speed(report).warnings)
    terminal.print_lines(console, (SummaryLine("warning", warning) for warning in warnings))
    nodes = report.nodes
    console.print(
        f"{nodes.half + nodes.mixed:,} of {plural(nodes.total - nodes.other, 'node')} in "
        f"{analysis.plan.half.name}, {plural(len(analysis.plan.casts), 'Cast')}; no model was written"
    )
    _print_files(console, job.files)


def outcome_lines(outcome: Outcome, io: IOTypes) -> Iterator[SummaryLine]:
    """Yield the line on the search, if there was one, and the reason if nothing became half."""
    yield from _search_lines(outcome)
    if outcome.result.report.obstacle is not None:
        yield SummaryLine("result", without_half(outcome, io), is_whole=True)


def _search_lines(outcome: Outcome) -> Iterator[SummaryLine]:
    return tuning.lines(outcome.tuned, outcome.result.report, is_taken=outcome.is_tuned)


def without_half(outcome: Outcome, io: IOTypes, model: str = "the model", result: str = "the result") -> str:
    """Return the message that nothing became half, with the state of the result and the main reason."""
    report = outcome.result.report
    obstacle = report.obstacle
    assert obstacle is not None, "nothing became half"
    if obstacle.already:
        rest = f"; the rest stays as it is: {obstacle.why}" if obstacle.why else ""
        copied = f"{result} is a copy" if result != model else "no file was written (-o FILE writes a copy)"
        disposition = f"{result} computes the same" if report.changed else copied
        return f"{model} has {report.half} already, and {disposition}{rest}"
    copied = "is a copy" if result != model else "stays as it is"
    same = "computes what the model does" if report.changed else copied
    has_no_effect = io is not IOTypes.KEEP and not report.changed
    borders = f"; --io {io.value} has no effect then" if has_no_effect else ""
    return f"nothing became {report.half}: {result} {same}, because {_why(outcome, obstacle)}{borders}"


def _why(outcome: Outcome, obstacle: Obstacle) -> str:
    report = outcome.result.report
    if outcome.is_tuned and outcome.tuned is not None and outcome.tuned.is_float32:
        return "float32 is the best plan within the bounds (see search)"
    if report.gated:
        return f"--gate asks for that where {report.half} does not pay"
    return obstacle.why or "nothing in it computes in float32"
