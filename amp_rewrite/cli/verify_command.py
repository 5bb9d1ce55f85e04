"""`amp-rewrite verify ORIGINAL REWRITTEN`: compare the outputs of two models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from amp_rewrite.cli import exit_codes, next_steps
from amp_rewrite.cli.fields_as_flags import as_argument, in_flags_of
from amp_rewrite.cli.flags import PATH, Record, command, flag
from amp_rewrite.cli.output_files import ReportFlags, WritingCommand
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.records import ComparisonFlags, Inputs, Limit, Printing, refuse_failed
from amp_rewrite.console import Console
from amp_rewrite.model import loading
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import tell
from amp_rewrite.reporting import terminal
from amp_rewrite.running import verdict_text
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.tuning.comparing import Judging


@dataclass(frozen=True)
class BorderFlags(Record, title="The models", argument="borders"):
    """The types of inputs and outputs."""

    io: str = flag(
        "--io",
        "Whether float32 inputs and outputs may be half in REWRITTEN.",
        values=tuple(io.value for io in IOTypes),
        default="keep",
    )


@command(BorderFlags, Inputs, ComparisonFlags, Limit, ReportFlags, Printing, kind=WritingCommand)
@click.argument("original", type=PATH)
@click.argument("rewritten", type=PATH)
def verify(
    original: Path,
    rewritten: Path,
    borders: BorderFlags,
    data: Data,
    judging: Judging,
    limit: TimeLimit,
    files: ReportFlags,
    printing: Printing,
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
    with shown_progress(quiet=printing.quiet) as progress, limit.running():
        tell(progress, "verify")
        verdict = judging.verdict(original, rewritten, data, IOTypes(borders.io), progress)
        tell(progress, "blame")
        verdict = in_flags_of(judging.with_blame(verdict, original, rewritten, data))
    terminal.print_lines(Console(stderr=True), next_steps.doubts("verify", original, rewritten))
    console, subject = printing.console, terminal.NamedOutcome(str(rewritten))
    terminal.print_verdict(console, verdict, subject, is_verbose=printing.verbose, per_node=judging.per_node)
    terminal.print_hints(console, next_steps.of_comparison(verdict, original, rewritten))
    if verdict.failed_run:
        mended = f"amp-rewrite restore {as_argument(rewritten)}   # a float32 model of it, which may run"
        terminal.print_hints(console, [mended])
    files.report(verdict_text.to_json(verdict))
    refuse_failed(verdict)
    exit_codes.fail_unless(verdict.ok or verdict.is_synthetic)
