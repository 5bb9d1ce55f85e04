"""`amp-rewrite train MODEL`: rewrite a train step to mixed precision with a loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from amp_rewrite import pipeline
from amp_rewrite.cli import exit_codes, explanation_sources, rewrite_output
from amp_rewrite.cli.decision_flags import DecisionFlags, decision_flags
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import (
    PATH,
    choice,
    grouped,
    json_flag,
    number,
    output_flag,
    quiet_flag,
    repeatable,
    switch,
    written,
)
from amp_rewrite.cli.html_and_plots import PageMaker, ReportFiles, html_flag
from amp_rewrite.cli.input_flags import counted_flags, timeout_flag
from amp_rewrite.cli.progress import shown_progress, tell
from amp_rewrite.cli.rewrite_job import attempted
from amp_rewrite.console import Console
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.model import writing
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.named_policies import FLOAT32, Policy
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.reporting import terminal
from amp_rewrite.rewriting import result_checks
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.training import comparing, scaled_step, spec, steps
from amp_rewrite.training.comparing import StepComparison
from amp_rewrite.training.spec import Asked, DynamicLossScale, Implementation, LossScale


@dataclass(frozen=True, slots=True)
class ScaleFlags:
    """The flags of the loss scale; with auto, the scale depends on the half type."""

    text: str
    dynamic: DynamicLossScale
    told: tuple[str, ...]
    skip_nonfinite: bool

    def settled(self, half: Half | None) -> LossScale | None:
        """Return the loss scale for a half type, or None; raise OptionError for ineffective flags."""
        loss_scale = self._asked(half)
        if self.told and not isinstance(loss_scale, DynamicLossScale):
            flags = " and ".join(self.told)
            raise OptionError(
                f"{flags} {'has' if len(self.told) == 1 else 'have'} no effect on --loss-scale {self.text}"
                f"{'' if half is FLOAT16 else f' for {half.name if half else FLOAT32}'}",
                remedy="say --loss-scale dynamic, or leave them out",
            )
        if self.skip_nonfinite and loss_scale is None:
            raise OptionError("--skip-nonfinite is for a loss scale", remedy="say --loss-scale 1, or more")
        return loss_scale

    def _asked(self, half: Half | None) -> LossScale | None:
        text = self.text.lower()
        if text == "none" or (text == spec.AUTO and half is None):
            return None
        if text in (spec.AUTO, spec.DYNAMIC):
            parsed = spec.parse_scale(text, half or FLOAT16)
            return self.dynamic if isinstance(parsed, DynamicLossScale) else parsed
        try:
            return spec.parse_scale(float(text))
        except (ValueError, OptionError) as error:
            raise OptionError(
                f"--loss-scale {self.text} is not a loss scale",
                remedy="say auto, dynamic, none, or a number from 1 up",
            ) from error


def _scale(flags: Mapping[str, Any]) -> ScaleFlags:
    explicit = written(click.get_current_context(), ("initial_scale", "increment_period", "multiplier"))
    try:
        dynamic = DynamicLossScale(flags["initial_scale"], flags["increment_period"], flags["multiplier"])
    except OptionError as error:
        flag = f"--{error.where.rpartition('.')[2].replace('_', '-')}"
        raise OptionError(f"{flag}: {error.problem}", remedy=error.remedy) from error
    return ScaleFlags(flags["loss_scale"], dynamic, tuple(explicit.values()), flags["skip_nonfinite"])


def _spec(flags: Mapping[str, Any]) -> Asked:
    try:
        state = spec.pairs("--state", flags["state"]) if flags["state"] else None
    except OptionError as error:
        raise OptionError(f"--state: {error.problem}", remedy="write it as in --state w=w.new") from error
    return Asked(flags["loss"], flags["seed_value"], state, tuple(flags["gradient"]) or None)


_START = DynamicLossScale()

scale_flags = grouped(
    (
        click.option(
            "--loss-scale",
            default=spec.AUTO,
            show_default=True,
            metavar="auto|dynamic|none|NUMBER",
            help="dynamic: adapted in every step; a number: fixed; auto: dynamic for float16, none for "
            "bfloat16.",
        ),
        number(
            "--initial-scale",
            float,
            "What a dynamic scale starts from.",
            _START.initial_scale,
            metavar="NUMBER",
        ),
        number(
            "--increment-period",
            int,
            "After how many steps with finite gradients a dynamic scale grows.",
            _START.increment_period,
            metavar="STEPS",
        ),
        number(
            "--multiplier",
            float,
            "What a dynamic scale grows by, and shrinks by where gradients are not finite.",
            _START.multiplier,
            metavar="NUMBER",
        ),
        switch(
            "--skip-nonfinite",
            "With a fixed scale: keep the state where gradients are not finite, as a dynamic one does.",
        ),
    ),
    "scaling",
    _scale,
)
"""A decorator that adds these flags to a command and passes them as `ScaleFlags` in `scaling`."""

spec_flags = grouped(
    (
        click.option("--loss", metavar="NAME", help="The output that is the loss."),
        click.option(
            "--seed", "seed_value", metavar="NAME", help="The value that every gradient is linear in."
        ),
        repeatable("--state", "IN=OUT", "An input, and the output that is its new value."),
        repeatable("--gradient", "NAME", "A value that is a gradient."),
    ),
    "said",
    _spec,
)
"""A decorator that adds these flags to a command and passes them as `Asked` in `said`."""


@click.command(cls=WritingCommand)
@click.argument("model", type=PATH)
@output_flag("MODEL_fp16.onnx (or _bf16)")
@spec_flags
@click.option(
    "--state-suffix",
    metavar="TEXT",
    help="The suffix of the output with an input's new value, such as .new.",
)
@scale_flags
@choice(
    "--implementation",
    [how.value for how in Implementation],
    "What becomes half: what the operator lists and rules decide, or every layer that they do not deny.",
    Implementation.GRAPH_REWRITE.value,
)
@switch("--explain", "Say what the step is and what stays float32; write no model.")
@switch("--no-certify", "Write the result even if it is not proved to be the step.")
@counted_flags
@switch("--no-verify", "Do not compare three steps of the result with three of the model.")
@switch("--require-verify", "Exit with code 1 also if the two could not be compared.")
@timeout_flag
@json_flag("report")
@quiet_flag
@decision_flags("external_data", takes_plan=False)
@html_flag
def train(
    model: Path,
    output: Path | None,
    said: Asked,
    state_suffix: str | None,
    scaling: ScaleFlags,
    implementation: str,
    explain: bool,
    no_certify: bool,
    data: Data,
    no_verify: bool,
    require_verify: bool,
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
    _refuse_contradictions(explain=explain, output=output, html=html)
    console, to = Console(quiet=quiet), asked.policy or asked.options.half
    loss_scale = scaling.settled(asked.policy.compute if asked.policy else asked.options.half)
    with result_checks.blaming(lambda: str(model)), shown_progress(quiet=quiet) as progress:
        comparing.refuse_huge(model)
        sizes = feeds.given_sizes(model, data)
        pages, compared = PageMaker(sizes.dims), None
        spec = steps.complete_spec(model, said, state_suffix)
        options = replace(asked.options, certify=not no_certify, dims=sizes)
        job = steps.job(to, loss_scale, implementation, spec, options, skip_nonfinite=scaling.skip_nonfinite)
        if explain:
            analysis = pipeline.analyze(
                model, job.options, observed=asked.seen, transform=job.first, progress=progress
            )
            report, written = analysis.report(), None
            advise = partial(explanation_sources.advise_planned, analysis)
        else:
            result = pipeline.rewrite(
                model,
                job.options,
                output=output,
                observed=asked.seen,
                transform=job.first,
                on_plan=pages.record if html else None,
                progress=progress,
            )
            report, written = result.report, result.model
            advise = partial(explanation_sources.advise_model, Path(written), report.half, sizes.dims)
            if not no_verify:
                tell(progress, "verify")
                half = job.options.half
                compared = attempted(
                    limit, partial(comparing.compare, model, Path(written), job.step, half, data)
                )
    step = job.step
    report = replace(report, warnings=tuple(map(in_flags, report.warnings)))
    if json_ is not None:
        extras = {"training": step.to_json(), "comparison": _comparison_json(compared)}
        writing.write_json({"model": str(model), **report.to_json(), **extras}, json_)
    if written is not None and html is not None:
        page = pages.of_step(model, report, step, _sentence(compared), Path(written))
        ReportFiles(html, None, placement=False).write(page)
    written = staging.current().commit(written)
    if written is not None:
        advise = partial(explanation_sources.advise_model, Path(written), report.half, sizes.dims)
        terminal.print_summary(console, report, str(written))
        terminal.print_lines(console, rewrite_output.data_lines(Path(written)))
    terminal.print_lines(console, scaled_step.lines(step))
    _print_compared(console, compared)
    policy = asked.policy or Policy(f"mixed_{asked.options.half.name}")
    terminal.print_device_check(console, policy, advise)
    if explain:
        terminal.print_lines(console, scaled_step.details(step))
    verdict_ok = compared.ok if isinstance(compared, StepComparison) else None
    exit_codes.end_rewrite(valid=report.ok, verdict_ok=verdict_ok, required=require_verify and not explain)


def _refuse_contradictions(*, explain: bool, output: Path | None, html: Path | None) -> None:
    if explain and (output or html):
        flag = "-o" if output else "--html"
        raise OptionError(
            f"{flag} has no effect with --explain, which writes no model", remedy="leave out one"
        )


def _sentence(compared: StepComparison | AmpRewriteError | None) -> str:
    if isinstance(compared, StepComparison):
        return f"{compared.verdict}: {comparing.describe(compared)}"
    return in_flags(compared) if compared else "--no-verify was given"


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
