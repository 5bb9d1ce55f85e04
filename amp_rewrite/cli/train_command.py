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
from amp_rewrite.cli.decision_flags import DecisionFlags, decision_flags
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import (
    PATH,
    choice,
    grouped,
    json_flag,
    output_flag,
    quiet_flag,
    repeatable,
    require_flag,
    switch,
)
from amp_rewrite.cli.html_page import PageMaker, html_flag
from amp_rewrite.cli.input_flags import counted_flags, timeout_flag
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.console import Console
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.model import writing
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.named_policies import FLOAT32, Policy
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import tell
from amp_rewrite.reporting import page, summary, terminal
from amp_rewrite.rewriting import result_checks
from amp_rewrite.rewriting.report import Report
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.training import comparing, scaled_step, spec, steps
from amp_rewrite.training.comparing import StepComparison
from amp_rewrite.training.spec import DynamicLossScale, Implementation, LossScale, TrainSpec
from amp_rewrite.tuning.comparing import attempted


@dataclass(frozen=True, slots=True)
class ScaleFlags:
    """The parts of `--loss-scale`: a word or a number, the settings of a dynamic one by their names in
    DynamicLossScale, and whether the state is kept where gradients are not finite.
    """

    text: str
    settings: Mapping[str, Any]
    skip_nonfinite: bool

    def settled(self, half: Half | None) -> LossScale | None:
        """Return the loss scale for a half type, or None; raise OptionError for parts without effect."""
        loss_scale = self._asked(half)
        if self.settings and not isinstance(loss_scale, DynamicLossScale):
            of_half = "" if half is FLOAT16 else f" for {half.name if half else FLOAT32}"
            raise OptionError(
                f"--loss-scale {self.text}{of_half} has no {' nor '.join(self.settings)}",
                remedy="say --loss-scale dynamic, or leave them out",
            )
        if self.skip_nonfinite and loss_scale is None:
            problem = "--loss-scale skip-nonfinite is for a loss scale"
            raise OptionError(problem, remedy="say --loss-scale 1, or more")
        return loss_scale

    def _asked(self, half: Half | None) -> LossScale | None:
        if self.text == "none" or (self.text == spec.AUTO and half is None):
            return None
        if self.text in (spec.AUTO, spec.DYNAMIC):
            parsed = spec.parse_scale(self.text, half or FLOAT16)
            return self._dynamic() if isinstance(parsed, DynamicLossScale) else parsed
        try:
            return spec.parse_scale(float(self.text))
        except (ValueError, OptionError) as error:
            raise _no_scale(self.text) from error

    def _dynamic(self) -> DynamicLossScale:
        try:
            return DynamicLossScale(**self.settings)
        except OptionError as error:
            setting = error.where.rpartition(".")[2]
            name = next(name for name, field in _SETTINGS.items() if field == setting)
            raise OptionError(f"--loss-scale {name}=: {error.problem}", remedy=error.remedy) from error


_SETTINGS = {"initial": "initial_scale", "period": "increment_period", "multiplier": "multiplier"}
_SKIP_NONFINITE = "skip-nonfinite"


def _no_scale(text: str) -> OptionError:
    remedy = f"say auto, dynamic, none, or a number from 1 up; {', '.join(f'{n}=N' for n in _SETTINGS)}"
    return OptionError(f"--loss-scale {text} is not a loss scale", remedy=f"{remedy}, or {_SKIP_NONFINITE}")


def _scale(flags: Mapping[str, Any]) -> ScaleFlags:
    parts = [part.strip().lower() for text in flags["loss_scale"] for part in text.split(",")]
    settings: dict[str, Any] = {}
    for part in (part for part in parts if "=" in part):
        name, _, number = part.partition("=")
        if _SETTINGS.get(name) in settings:
            raise OptionError(f"--loss-scale gives {name} twice", remedy="give it once")
        try:
            settings[_SETTINGS[name]] = int(number) if number.isdecimal() else float(number)
        except (KeyError, ValueError) as error:
            raise _no_scale(part) from error
    words = [part for part in parts if "=" not in part and part != _SKIP_NONFINITE]
    if len(words) > 1:
        raise OptionError(f"--loss-scale is both {words[0]} and {words[1]}", remedy="give it once")
    return ScaleFlags(words[0] if words else spec.AUTO, settings, _SKIP_NONFINITE in parts)


def _spec(flags: Mapping[str, Any]) -> tuple[TrainSpec, str | None]:
    """Return what is known of the step, and the suffix that pairs state."""
    state, suffixes = ([text for text in flags["state"] if ("=" in text) is pairs] for pairs in (True, False))
    if len(suffixes) > 1:
        problem = f"--state {suffixes[1]}: the suffix is {suffixes[0]}"
        raise OptionError(problem, remedy="give one suffix, or pairs as in --state w=w.new")
    try:
        pairs = spec.pairs("--state", state)
    except OptionError as error:
        raise OptionError(f"--state: {error.problem}", remedy="write it as in --state w=w.new") from error
    step = TrainSpec(flags["loss"] or "", flags["seed_value"] or "", pairs, tuple(flags["gradient"]))
    return step, next(iter(suffixes), None)


_START = DynamicLossScale()

scale_flags = grouped(
    (
        repeatable(
            "--loss-scale",
            "PART",
            "auto (the default): dynamic for float16, none for bfloat16; dynamic: adapted in every step; "
            f"none; a number: fixed. Of a dynamic one, initial=N ({_START.initial_scale:g}); period=N, the "
            f"steps with finite gradients until it grows ({_START.increment_period}); multiplier=N, by which "
            f"it grows, and shrinks where gradients are not finite ({_START.multiplier:g}). Of a fixed one, "
            f"{_SKIP_NONFINITE}: keep the state where gradients are not finite. Commas may join parts.",
        ),
    ),
    "scaling",
    _scale,
)
"""A decorator that adds the flag to a command and passes it as `ScaleFlags` in `scaling`."""

spec_flags = grouped(
    (
        click.option("--loss", metavar="NAME", help="The output that is the loss."),
        click.option(
            "--seed", "seed_value", metavar="NAME", help="The value that every gradient is linear in."
        ),
        repeatable(
            "--state",
            "IN=OUT|SUFFIX",
            "An input, and the output that is its new value; or the suffix of all such outputs, as in .new.",
        ),
        repeatable("--gradient", "NAME", "A value that is a gradient."),
    ),
    "said",
    _spec,
)
"""A decorator that adds these flags to a command and passes them, as `TrainSpec` and a suffix, in `said`."""


@click.command(cls=WritingCommand)
@click.argument("model", type=PATH)
@output_flag("MODEL_fp16.onnx (or _bf16)")
@spec_flags
@scale_flags
@choice(
    "--implementation",
    [how.value for how in Implementation],
    "What becomes half: what the operator lists and rules decide, or every layer that they do not deny.",
    Implementation.GRAPH_REWRITE.value,
)
@switch("--dry-run", "Say what the step is and what stays float32; write no model.")
@counted_flags
@require_flag("verify")
@timeout_flag
@json_flag("report")
@quiet_flag
@decision_flags(
    "external_data",
    "certify",
    takes_plan=False,
    steps={"verify": "three steps of the result are not compared with three of the model"},
)
@html_flag
def train(
    model: Path,
    output: Path | None,
    said: tuple[TrainSpec, str | None],
    scaling: ScaleFlags,
    implementation: str,
    dry_run: bool,
    data: Data,
    require: tuple[str, ...],
    limit: TimeLimit,
    json_: Path | None,
    quiet: bool,
    asked: DecisionFlags,
    html: Path | None,
) -> None:
    """Rewrite a train step, MODEL, to half with a loss scale.

    A train step is a plain graph that takes weights and a batch, and returns the loss and the new weights.
    Loss, seed and state are taken from the flags, else from the metadata of the model, else found by name,
    else by dataflow. Anything ambiguous is an error that lists the candidates.

    Three steps of both are compared, with their states fed back: on what --data has of states and batches,
    and on made-up inputs for what it lacks. Exit code 1 when the result is not valid, or learns otherwise.
    """
    console, to = Console(quiet=quiet), asked.policy or asked.options.half
    loss_scale = scaling.settled(asked.policy.compute if asked.policy else asked.options.half)
    with result_checks.blaming(lambda: str(model)), shown_progress(quiet=quiet) as progress:
        comparing.refuse_huge(model)
        sizes = feeds.given_sizes(model, data)
        pages, compared = PageMaker(sizes.dims), None
        request, suffix = said
        job = steps.job(
            to,
            loss_scale,
            implementation,
            request,
            replace(asked.options, dims=sizes),
            skip_nonfinite=scaling.skip_nonfinite,
            suffix=suffix,
        )
        if dry_run:
            analysis = pipeline.analyze(
                model, job.options, observed=asked.seen, transform=job.first, progress=progress
            )
            report, written = analysis.report(), None
        else:
            result = pipeline.rewrite(
                model,
                job.options,
                output=output,
                force=True,  # refused before
                observed=asked.seen,
                transform=job.first,
                on_plan=pages.record if html else None,
                progress=progress,
            )
            report, written = result.report, result.model
            if "verify" not in asked.skipped:
                tell(progress, "verify")
                compared = attempted(limit, partial(comparing.compare, model, Path(written), job, data))
    step = job.step
    report = replace(report, warnings=tuple(map(in_flags, report.warnings)))
    if json_ is not None:
        extras = {"training": step.to_json(), "comparison": _comparison_json(compared)}
        writing.write_json({"model": str(model), **report.to_json(), **extras}, json_)
    if written is not None and html is not None:
        page.write(pages.of_step(model, report, step, _sentence(compared), Path(written)), html)
    written = staging.current().commit(written)
    if written is not None:
        terminal.print_summary(console, rewrite_output.before_speed(report), str(written))
        terminal.print_lines(console, rewrite_output.data_lines(Path(written)))
    terminal.print_lines(console, scaled_step.lines(step))
    _print_compared(console, compared)
    policy = asked.policy or Policy(f"mixed_{asked.options.half.name}")
    terminal.print_device_check(console, policy, asked.options.device)
    if dry_run:
        terminal.print_lines(console, scaled_step.details(step))
    if written is not None:
        _print_conclusion(console, report, compared, str(written))
    verdict_ok = compared.ok if isinstance(compared, StepComparison) else None
    exit_codes.end_rewrite(valid=report.ok, verdict_ok=verdict_ok, required=bool(require) and not dry_run)


def _print_conclusion(
    console: Console, report: Report, compared: StepComparison | AmpRewriteError | None, result: str
) -> None:
    """Print the last lines: the verdict, sizes, the largest error of a loss, and the predicted speed."""
    clauses, label = [summary.sizes(report)], "not compared"
    if isinstance(compared, StepComparison):
        label, error = compared.verdict, max(step.error for step in compared.steps)
        clauses.append(f"largest error of the loss {error:.1e} (limit {compared.bounds.loss:g})")
    label = label if report.ok else "FAIL"
    terminal.print_conclusion(console, label, terminal.Subject(result, clauses, rewrite_output.speed(report)))


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
