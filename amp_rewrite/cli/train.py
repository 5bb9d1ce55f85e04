"""`amp-rewrite train MODEL`: a train step in mixed precision, with a loss scale."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from amp_rewrite import explanation_sources, pipeline
from amp_rewrite.cli import exit_codes, rewrite_output
from amp_rewrite.cli.decision_flags import DecisionFlags, free_decision_flags
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import PATH, choice, switch
from amp_rewrite.cli.html_and_plots import PageMaker, ReportFiles, html_flag
from amp_rewrite.cli.output_flags import external_data_flag, json_flag, output_flag
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.train_flags import ScaleFlags, scale_flags, spec_flags
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.model import writing
from amp_rewrite.policy.named_policies import Policy
from amp_rewrite.policy.options import ExternalData
from amp_rewrite.reporting import terminal_rewrite
from amp_rewrite.rewriting import result_checks
from amp_rewrite.training import step_questions, step_text, steps
from amp_rewrite.training.asked_spec import Asked
from amp_rewrite.training.casting import Implementation


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
@json_flag("report")
@external_data_flag
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@free_decision_flags
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
    json_: Path | None,
    external_data: ExternalData,
    quiet: bool,
    asked: DecisionFlags,
    html: Path | None,
) -> None:
    """Rewrite a train step, MODEL, to half with a loss scale.

    A train step is a plain graph that takes weights and a batch, and returns the loss and the new weights.
    Loss, seed and state are taken from the flags, else from the metadata of the model, else found by name,
    else by dataflow. Anything ambiguous is an error that lists the candidates.
    """
    if explain and (output or html):
        flag = "-o" if output else "--html"
        raise OptionError(
            f"{flag} has no effect with --explain, which writes no model", remedy="leave out one"
        )
    pages = PageMaker({})
    console, to = Console(quiet=quiet), asked.policy or asked.options.half
    loss_scale = scaling.settled(asked.policy.compute if asked.policy else asked.options.half)
    with result_checks.blaming(lambda: str(model)), shown_progress(quiet=quiet) as progress:
        spec = step_questions.complete_spec(model, said, state_suffix)
        options = replace(asked.options, certify=not no_certify, external_data=external_data)
        job = steps.job(to, loss_scale, implementation, spec, options, skip_nonfinite=scaling.skip_nonfinite)
        if explain:
            analysis = pipeline.analyze(
                model, job.options, seen=asked.seen, first=job.first, progress=progress
            )
            report, written = analysis.report(), None
            advise = partial(explanation_sources.advise_planned, analysis)
        else:
            result = pipeline.rewrite(
                model,
                job.options,
                output=output,
                seen=asked.seen,
                first=job.first,
                on_plan=pages.record if html else None,
                progress=progress,
            )
            report, written = result.report, result.model
            advise = partial(explanation_sources.advise, written, report.half)
    step = job.step
    report = replace(report, warnings=tuple(map(in_flags, report.warnings)))
    if json_ is not None:
        content = {"model": str(model), **report.to_json(), "training": step.to_json()}
        writing.write_json(content, json_)
    if written is not None and html is not None:
        ReportFiles(html, None, placement=False).write(pages.of_step(model, report, step, Path(written)))
    if written is not None:
        terminal_rewrite.print_summary(console, report, str(written))
        terminal_rewrite.print_lines(console, rewrite_output.data_lines(Path(written)))
    terminal_rewrite.print_lines(console, step_text.lines(step))
    policy = asked.policy or Policy(f"mixed_{asked.options.half.name}")
    rewrite_output.print_device(console, policy, advise)
    if explain:
        terminal_rewrite.print_lines(console, step_text.details(step))
    exit_codes.end_rewrite(valid=report.ok, passed=None)
