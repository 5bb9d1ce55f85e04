"""`amp-rewrite train MODEL`: rewrite a train step to mixed precision with a loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from amp_rewrite import pipeline
from amp_rewrite.cli import exit_codes, rewrite_output
from amp_rewrite.cli.decisions import VERIFY, DecisionRequest, TrainDecisions
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flags import PATH, Record, command, flag
from amp_rewrite.cli.html_page import PageMaker
from amp_rewrite.cli.output_files import TrainFiles, WritingCommand
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.records import Limit, Quiet, SizeFlags, assignments
from amp_rewrite.console import Console
from amp_rewrite.coverage import counts
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.options import CASTING, FLOAT32
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import tell
from amp_rewrite.reporting import page, summary, terminal
from amp_rewrite.reporting.page import RunEvidence
from amp_rewrite.rewriting import result_checks
from amp_rewrite.rewriting.report import Report
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.training import comparing, scaled_step, spec, steps
from amp_rewrite.training.comparing import StepComparison
from amp_rewrite.training.spec import DynamicLossScale, Implementation, LossScale, TrainSpec
from amp_rewrite.tuning.comparing import attempted

_SETTINGS = {"initial": "initial_scale", "period": "increment_period", "multiplier": "multiplier"}
_SKIP_NONFINITE = "skip-nonfinite"
_START = DynamicLossScale()


@dataclass(frozen=True)
class StepNames(Record, title="The train step", argument="said"):
    """What is known of the step; the command gets a `TrainSpec`, and the suffix that pairs state."""

    loss: str | None = flag("--loss NAME", "The output that is the loss.")
    seed_value: str | None = flag("--seed NAME", "The value that every gradient is linear in.")
    state: tuple[str, ...] = flag(
        "--state IN=OUT|SUFFIX...",
        "An input, and the output that is its new value; or the suffix of all such outputs, as in .new.",
        short="An input, and the output that is its new value.",
    )

    gradient: tuple[str, ...] = flag("--gradient NAME...", "A value that is a gradient.")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return what is known of the step, and the suffix that pairs state, if it is given."""
        state, suffixes = (
            [text for text in values["state"] if ("=" in text) is pairs] for pairs in (True, False)
        )
        if len(suffixes) > 1:
            problem = f"--state {suffixes[1]}: the suffix is {suffixes[0]}"
            raise OptionError(problem, remedy="give one suffix, or pairs as in --state w=w.new")
        try:
            pairs = spec.pairs("--state", state)
        except OptionError as error:
            raise OptionError(f"--state: {error.problem}", remedy="write it as in --state w=w.new") from error
        step = TrainSpec(values["loss"] or "", values["seed_value"] or "", pairs, values["gradient"])
        return step, next(iter(suffixes), None)


@dataclass(frozen=True)
class ScaleFlags(Record, title=StepNames.title, argument="scaling"):
    """The parts of `--loss-scale`."""

    loss_scale: tuple[str, ...] = flag(
        "--loss-scale PART...",
        "auto (the default): dynamic for float16, none for bfloat16; dynamic: adapted in every step; "
        f"none; a number: fixed. Of a dynamic one, initial=N ({_START.initial_scale:g}); period=N, the "
        f"steps with finite gradients until it grows ({_START.increment_period}); multiplier=N, by which "
        f"it grows, and shrinks where gradients are not finite ({_START.multiplier:g}). Of a fixed one, "
        f"{_SKIP_NONFINITE}: keep the state where gradients are not finite. Commas may join parts.",
        short="auto, dynamic, none or a number, and settings.",
    )

    @property
    def parts(self) -> list[str]:
        """The parts, whether they were joined or not."""
        return [part.strip().lower() for text in self.loss_scale for part in text.split(",")]

    @property
    def skips_nonfinite(self) -> bool:
        """Whether the state is kept where gradients are not finite."""
        return _SKIP_NONFINITE in self.parts

    def settled(self, half: Half | None) -> LossScale | None:
        """Return the loss scale for a half type, or None; raise OptionError for parts without effect."""
        texts = [part for part in self.parts if part != _SKIP_NONFINITE]
        numbers = [text for text in texts if "=" in text]
        settings = assignments("--loss-scale", numbers, "NAME=N", _setting, "values", "period=2000")
        words = [text for text in texts if "=" not in text] or [spec.AUTO]
        if len(words) > 1:
            raise OptionError(f"--loss-scale is both {words[0]} and {words[1]}", remedy="give it once")
        (word,) = words
        scale = _scale(word, half)
        if isinstance(scale, DynamicLossScale):
            return replace(scale, **{_SETTINGS[name]: number for name, number in settings.items()})
        if settings:
            of_half = "" if half is FLOAT16 else f" for {half.name if half else FLOAT32}"
            raise OptionError(
                f"--loss-scale {word}{of_half} has no {' nor '.join(settings)}",
                remedy="say --loss-scale dynamic, or leave them out",
            )
        if self.skips_nonfinite and scale is None:
            problem = "--loss-scale skip-nonfinite is for a loss scale"
            raise OptionError(problem, remedy="say --loss-scale 1, or more")
        return scale


def _setting(name: str, text: str) -> float:
    if name not in _SETTINGS:
        raise ValueError
    return int(text) if text.isdecimal() else float(text)


def _scale(word: str, half: Half | None) -> LossScale | None:
    if word == "none" or (word == spec.AUTO and half is not FLOAT16):
        return None
    try:
        return spec.parse_scale(word if word in (spec.AUTO, spec.DYNAMIC) else float(word))
    except (ValueError, OptionError) as error:
        remedy = f"say auto, dynamic, none, or a number from 1 up; or {_SKIP_NONFINITE}"
        raise OptionError(f"--loss-scale {word} is not a loss scale", remedy=remedy) from error


@command(TrainFiles, StepNames, ScaleFlags, TrainDecisions, SizeFlags, Limit, Quiet, kind=WritingCommand)
@click.argument("model", type=PATH)
def train(
    model: Path,
    files: TrainFiles,
    said: tuple[TrainSpec, str | None],
    scaling: ScaleFlags,
    asked: DecisionRequest,
    data: Data,
    limit: TimeLimit,
    printing: Quiet,
) -> None:
    """Rewrite a train step, MODEL, to half with a loss scale.

    A train step is a plain graph that takes weights and a batch, and returns the loss and the new weights.
    Loss, seed and state are taken from the flags, else from the metadata of the model, else found by name,
    else by dataflow. Anything ambiguous is an error that lists the candidates.

    Three steps of both are compared, with their states fed back: on what --data has of states and batches,
    and on synthetic inputs for what it lacks. Exit code 1 when the result is not valid, or learns otherwise.
    """
    console, half = printing.console, steps.compute_type(asked.to)
    loss_scale = scaling.settled(half)
    with result_checks.blaming(lambda: str(model)), shown_progress(quiet=printing.quiet) as progress:
        sizes = feeds.given_sizes(model, data)
        pages, compared = PageMaker(sizes.dims), None
        request, suffix = said
        job = steps.job(
            asked.to,
            loss_scale,
            Implementation.CASTING if asked.level == CASTING else Implementation.GRAPH_REWRITE,
            request,
            replace(asked.options, dims=sizes),
            skip_nonfinite=scaling.skips_nonfinite,
            suffix=suffix,
        )
        if files.dry_run:
            analysis = pipeline.analyze(
                model, job.options, observed=asked.seen, transform=job.first, progress=progress
            )
            report, written = analysis.report(), None
        else:
            result = pipeline.rewrite(
                model,
                job.options,
                output=files.output,
                force=files.force,
                observed=asked.seen,
                transform=job.first,
                on_plan=pages.record if files.html else None,
                progress=progress,
            )
            report, written = result.report, result.model
            if VERIFY not in asked.skipped:
                tell(progress, "verify")
                compared = attempted(limit, partial(comparing.compare, model, Path(written), job, data))
    step = job.step
    report = replace(report, warnings=tuple(map(in_flags, report.warnings)))
    extras = {"training": step.to_json(), "comparison": _comparison_json(compared)}
    files.report({"model": str(model), **report.to_json(), **extras})
    if written is not None and files.html is not None:
        coverage = counts.measure(written, sizes.dims)
        whole = pages.page(model, report, RunEvidence(unverified=_sentence(compared)), coverage)
        page.write(page.with_step(whole, scaled_step.lines(step), step.parts), files.html)
    written = staging.current().commit(written)
    if written is not None:
        terminal.print_summary(console, rewrite_output.before_speed(report), str(written))
        terminal.print_lines(console, rewrite_output.data_lines(Path(written)))
    terminal.print_lines(console, scaled_step.lines(step))
    _print_compared(console, compared)
    terminal.print_device_check(console, half, asked.options.device)
    if files.dry_run:
        terminal.print_lines(console, scaled_step.details(step))
    if written is not None:
        _print_conclusion(console, report, compared, str(written))
    verdict_ok = compared.ok if isinstance(compared, StepComparison) else None
    exit_codes.end_rewrite(valid=report.ok, verdict_ok=verdict_ok, required=bool(asked.required))


def _print_conclusion(
    console: Console, report: Report, compared: StepComparison | AmpRewriteError | None, result: str
) -> None:
    """Print the last lines: the verdict, sizes, the largest error of a loss, and the predicted speed."""
    clauses, label = [summary.sizes(report)], "not compared"
    if isinstance(compared, StepComparison):
        label, error = compared.verdict, max(step.error for step in compared.steps)
        clauses.append(f"largest error of the loss {error:.1e} (limit {compared.bounds.loss:g})")
    label = label if report.ok else "FAIL"
    terminal.print_conclusion(
        console, label, terminal.NamedOutcome(result, clauses, rewrite_output.speed(report))
    )


def _sentence(compared: StepComparison | AmpRewriteError | None) -> str:
    if isinstance(compared, StepComparison):
        scaled = f"; {compared.scaled}" if compared.scaled is not None else ""
        return f"{compared.verdict}: {comparing.describe(compared)}{scaled}"
    return in_flags(compared) if compared else "--skip verify was given"


def _comparison_json(compared: StepComparison | AmpRewriteError | None) -> dict[str, Any]:
    """Return the comparison as JSON data, or the reason for none."""
    return compared.to_json() if isinstance(compared, StepComparison) else {"unverified": _sentence(compared)}


def _print_compared(console: Console, compared: StepComparison | AmpRewriteError | None) -> None:
    """Print a line for each step and the verdict, or the reason for none on standard error."""
    if isinstance(compared, AmpRewriteError):
        Console(stderr=True).print(f"warning  not compared with the model: {in_flags(compared)}")
    if isinstance(compared, StepComparison):
        console.print(comparing.describe(compared))
        console.numbers(comparing.COLUMNS, comparing.cells(compared))
        if compared.scaled is not None:
            console.print(str(compared.scaled))
