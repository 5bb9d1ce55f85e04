"""`amp-rewrite verify ORIGINAL REWRITTEN`: compare the outputs of two models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from amp_rewrite.cli import exit_codes, next_steps
from amp_rewrite.cli.comparison_flags import comparison_flags, doubts, in_flags_of, refuse_failed
from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import PATH, choice, json_flag, verbose_flag
from amp_rewrite.cli.input_flags import input_flags, timeout_flag
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.console import Console
from amp_rewrite.model import loading, writing
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import tell
from amp_rewrite.reporting import terminal, verdict_text
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.tuning.comparing import Judging


@click.command(cls=WritingCommand)
@click.argument("original", type=PATH)
@click.argument("rewritten", type=PATH)
@input_flags
@comparison_flags
@timeout_flag
@choice(
    "--io",
    [io.value for io in IOTypes],
    "Whether float32 inputs and outputs may be half in REWRITTEN.",
    "keep",
)
@json_flag("verdict")
@verbose_flag
def verify(
    original: Path,
    rewritten: Path,
    data: Data,
    judging: Judging,
    limit: TimeLimit,
    io: str,
    json_: Path | None,
    verbose: bool,
) -> None:
    """Compare REWRITTEN with ORIGINAL on given or synthetic inputs.

    They run on CUDA where it works, and otherwise on the CPU, with half rounded as a GPU would round it. Exit
    code 1 when a tolerance is exceeded, when names, types or shapes differ, or when given inputs prove
    nothing.
    """
    judging.refuse_missing()
    data = replace(data, steps=judging.steps)
    for path in (original, rewritten):
        loading.load(path)  # for our error messages rather than onnxruntime's
    with shown_progress() as progress, limit.running():
        tell(progress, "verify")
        verdict = judging.verdict(original, rewritten, data, IOTypes(io), progress)
        tell(progress, "blame")
        verdict = in_flags_of(judging.with_blame(verdict, original, rewritten, data))
    terminal.print_lines(Console(stderr=True), doubts("verify", original, rewritten))
    subject = terminal.Subject(str(rewritten))
    terminal.print_verdict(Console(), verdict, subject, is_verbose=verbose, per_node=judging.per_node)
    terminal.print_hints(Console(), next_steps.of_comparison(verdict, original, rewritten))
    if verdict.failed_run:
        mended = f"amp-rewrite restore {as_argument(rewritten)}   # a float32 model of it, which may run"
        terminal.print_hints(Console(), [mended])
    if json_ is not None:
        writing.write_json(verdict_text.to_json(verdict), json_)
    refuse_failed(verdict)
    exit_codes.fail_unless(verdict.ok or verdict.is_made_up)
