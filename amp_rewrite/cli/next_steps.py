"""Advice after a command, in sentences that name the flag to add or the command to run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from amp_rewrite import pipeline
from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.rewrite_job import RewriteJob
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.explaining import sentences
from amp_rewrite.numerics.half import BY_NAME
from amp_rewrite.policy.options import Level
from amp_rewrite.policy.targets import TENSORRT
from amp_rewrite.preparing.opset_raising import NewerOpset
from amp_rewrite.rewriting.report import Report, Result, SummaryLine
from amp_rewrite.running import emulation, verdict_text
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.text import plural
from amp_rewrite.tuning.repair import Outcome
from amp_rewrite.tuning.search import Prefer
from amp_rewrite.tuning.tune import Tuned

_WIDEST = 0.1
"""The relative error above which no tolerance is suggested: such an output is simply wrong."""


def after(job: RewriteJob, outcome: Outcome, *, is_bad: bool) -> Iterator[str]:
    """Yield advice after a bad verdict, a search that left nothing in half, or nodes left in float32; for
    TensorRT, the command that builds an engine of a good result.
    """
    verdict, tuned = outcome.verification, outcome.tuned
    if is_bad:
        assert isinstance(verdict, Verdict), "what is bad was compared"
        yield from _after_failure(job, outcome, verdict)
    elif tuned is not None and outcome.is_tuned and tuned.is_float32:
        if bound := looser(tuned):
            yield _raised(bound, "the default plan")
        if job.tuning.prefer is Prefer.TIME and outcome.result.report.gated:
            yield f"{_tune(job)} --prefer flops   # half what the error allows, whatever the time"
    elif outcome.result.report.nodes.full:
        yield _explain(job, outcome.result)
    report = outcome.result.report
    if report.newer_opset is not None and not (job.in_place or job.replay):
        yield from _newer(report.newer_opset, job, report)
    if job.options.target is TENSORRT and report.changed and not is_bad:
        result = Path(outcome.result.model)
        files = f"--onnx={as_argument(result)} --saveEngine={as_argument(result.with_suffix('.plan'))}"
        yield f"trtexec {files}   # TensorRT 10: with --stronglyTyped"


def _newer(newer: NewerOpset, job: RewriteJob, report: Report) -> Iterator[str]:
    """Yield the flag for an opset at which more is half, with its gain and loss; of a result with half nodes,
    unless that is predicted to be slower than float32.
    """
    try:
        there = pipeline.analyze(job.model, replace(job.options, opset=newer.version)).report()
    except AmpRewriteError:  # a pin fits no node there
        return
    more = there.nodes.half + there.nodes.mixed - report.nodes.half - report.nodes.mixed
    is_slow = there.prediction is not None and sentences.does_not_pay(there.prediction)
    if more <= 0 or (is_slow and report.nodes.half):
        return
    gains = f"{plural(more, 'node')} more in {report.half}"
    speed = there.prediction and f", predicted {there.prediction.speedup:.1f} times as fast as float32"
    yield f"--opset {newer.version}   # {gains}{speed or ''}; {job.options.target.name} has {newer.loss}"


def _explain(job: RewriteJob, result: Result[Any]) -> str:
    """Return the command that explains why nodes stay float32.

    It reads the result if that carries its reasons, the model where the defaults decided, and else a plan.
    """
    report = result.report
    decided = job.asked.decided or bool(
        report.observed or report.imprecise_outputs or report.sensitive or report.rescaled
    )
    if decided and not (report.changed and job.options.metadata):
        if (plan := job.files.saved("plan")) is None:
            return "--save plan=FILE   # amp-rewrite explain FILE then says why nodes stay float32"
        return f"amp-rewrite explain {as_argument(plan)}   # why nodes stay float32"
    subject = Path(result.model) if decided else job.model
    return f"amp-rewrite explain {as_argument(subject)}   # why nodes stay float32"


def _after_failure(job: RewriteJob, outcome: Outcome, verdict: Verdict) -> Iterator[str]:
    """Yield flags that a trial shows to help, else a search; at least one line for a failed tolerance."""
    as_it_is = job.in_place or job.replay is not None  # flags that change the result do not apply
    hints = [hint for hint in verdict_text.hints(verdict) if not (as_it_is and hint.startswith("--keep-io"))]
    yield from hints
    is_mended = any(attempt.ok for attempt in verdict.tried) or any(
        hint.startswith("--keep-io") for hint in hints
    )
    if verdict.is_far and not is_mended:
        yield _further(job, outcome.tuned, verdict)


def _further(job: RewriteJob, tuned: Tuned | None, verdict: Verdict) -> str:
    if job.in_place:
        return "the original, and -o FILE in place of --in-place, which has replaced it by what failed"
    if tuned is not None and tuned.is_below_noise and verdict.error <= _WIDEST:
        return _raised(_above(verdict.error), "this result")
    if tuned is not None and not tuned.sites:
        return _raised(_above(verdict.error), "this result, in which only inputs and outputs are half,")
    forced = "--force-half" if job.options.pins.force_half else ""
    if job.options.level is Level.UNSAFE_FORCE_ALL:
        forced = f"--level {job.options.level.value}"
    flags = " --budget SECONDS" if tuned is not None and not forced else ""
    if verdict.misfits:
        ports = " ".join(f"--keep-io {shlex.quote(port.name)}" for port in verdict.misfits)
        flags = f" --io {job.options.io.value} {ports}"
    without = f", without {forced}" if forced else ""
    return f"{_tune(job)}{flags}   # searches for a plan that passes{without}"


def _tune(job: RewriteJob) -> str:
    return f"amp-rewrite tune {as_argument(job.model)}"


def of_comparison(verdict: Verdict, original: Path, rewritten: Path) -> Iterator[str]:
    """Yield advice on a result of any tool that `verify` compared."""
    model, result = as_argument(original), as_argument(rewritten)
    for hint in verdict_text.hints(verdict):
        half_io = "--io half " if hint.startswith("--keep-io") else ""
        command = f"amp-rewrite {model} {half_io}{hint}   # not tried"
        yield command if hint.startswith("--keep") else hint
    if any(f"is tensor({half}), and was" in fault for half in BY_NAME for fault in verdict.signature):
        yield "--io half   # compares half inputs and outputs as well"
    if verdict.is_far:
        yield f"amp-rewrite tune {model}   # searches for what to keep in float32"
        yield f"amp-rewrite certify {model} {result}   # says whether they differ in more than precision"


def looser(tuned: Tuned) -> str:
    """Return the tolerance that the default plan meets; empty for another metric, or if it is too wide."""
    error = tuned.walked[0].error if tuned.walked and tuned.bound == "error" else math.inf
    return _above(error) if error <= _WIDEST else ""


def _raised(bound: str, subject: str) -> str:
    """Return the error bound that the subject meets."""
    return f"--tolerance error={bound}   # {subject} is within that"


def _above(error: float) -> str:
    """Round an error up to two digits."""
    digits = f"{error:.1e}"
    return digits if float(digits) >= error else f"{float(digits) * 1.1:.1e}"


def doubts(command: str, original: Path, rewritten: Path) -> Iterator[SummaryLine]:
    """Yield a hint that the two may be the wrong models: neither has half, or only the first, which suggests
    the wrong order.
    """
    half = emulation.half_of(original)
    if emulation.half_of(rewritten) is not None:
        return
    if half is None:
        yield SummaryLine("note", f"nothing in {rewritten} is half, nor in {original}")
        return
    line = f"amp-rewrite {command} {as_argument(rewritten)} {as_argument(original)}"
    hint = f"{original} has {half.name} and {rewritten} has none: the original comes first ({line})"
    yield SummaryLine("swapped?", hint, is_whole=True)
