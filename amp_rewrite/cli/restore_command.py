"""`amp-rewrite restore MODEL`: convert a half model of any tool back to float32."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from amp_rewrite.certificate.certifying import certify
from amp_rewrite.cli import exit_codes, rewrite_output
from amp_rewrite.cli.decisions import RewriteDecisions, external_data
from amp_rewrite.cli.fields_as_flags import in_flags_of
from amp_rewrite.cli.flags import PATH, Record, as_field, command, flag
from amp_rewrite.cli.output_files import OutputFlags, WritingCommand
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.records import ComparisonFlags, Inputs, Limit, Printing, refuse_failed
from amp_rewrite.console import Console, Styled
from amp_rewrite.conversion import refuse_unjudged
from amp_rewrite.errors import AmpRewriteError, ModelError
from amp_rewrite.files import staging
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import Progress, tell
from amp_rewrite.reporting import terminal
from amp_rewrite.rewriting.restore import Restored
from amp_rewrite.rewriting.restore import restore as restored
from amp_rewrite.running import verdict_text
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.text import plural
from amp_rewrite.tuning.comparing import Judging


@dataclass(frozen=True)
class Restoring(Record, title="The result", argument="restoring"):
    """What is restored, and whether it is compared."""

    io: str = flag(
        "--io",
        "Whether half inputs and outputs keep their type, or become float32.",
        values=("keep", "float"),
        default="keep",
    )
    external_data: str = as_field(RewriteDecisions.flags()["external_data"])
    skip: tuple[str, ...] = flag(
        "--skip", "Skip steps:", words={"verify": "the result is not compared with the model"}
    )


@command(OutputFlags, Restoring, Inputs, ComparisonFlags, Limit, Printing, kind=WritingCommand)
@click.argument("model", type=PATH)
def restore(
    model: Path,
    files: OutputFlags,
    restoring: Restoring,
    data: Data,
    judging: Judging,
    limit: TimeLimit,
    printing: Printing,
) -> None:
    """Turn a half MODEL, made by any tool, back into float32.

    This is for providers where half is slow or missing. Stored values are widened, and Casts that no longer
    do anything are removed. The result is compared with MODEL, whose half is emulated unless --provider names
    another place to run it. Exit code 1 when the result is not valid, or too far off.
    """
    judging.refuse_missing()
    data, io = replace(data, steps=judging.steps), restoring.io
    stored = external_data(restoring.external_data)
    if data.is_given and not restoring.skip:
        next(feeds.feeds(model, data), None)  # refuses what does not fit before there is a result
    with shown_progress(quiet=printing.quiet) as progress:
        tell(progress, "restore")
        restoration = restored(model, output=files.output, io=io, external_data=stored, force=files.force)
        verdict = None
        if not restoring.skip:
            tell(progress, "verify")
            verdict = _compared(judging, restoration, model, data, io, limit, progress)
        is_proved = isinstance(verdict, Verdict) and verdict.is_far and _is_proved(model, restoration)
    refuse_unjudged(limit, verdict, restoration.model)
    verification = verdict_text.to_json(verdict) if isinstance(verdict, Verdict) else None
    files.report({**restoration.to_json(), "verification": verification})
    restoration = replace(restoration, model=staging.current().commit(restoration.model))
    console = printing.console
    _print(console, restoration, model)
    if isinstance(verdict, AmpRewriteError):
        Console(stderr=printing.quiet).print(f"warning  not compared with the model: {verdict}")
    elif verdict is not None:
        subject = terminal.NamedOutcome(str(restoration.model))
        per_node = judging.per_node
        terminal.print_verdict(console, verdict, subject, is_verbose=printing.verbose, per_node=per_node)
        if is_proved:
            console.print(f"note     the result is proved equal to {model} but for precision: {_OFF}")
        terminal.print_hints(console, verdict_text.hints(verdict))
    refuse_failed(verdict)
    exit_codes.end_rewrite(
        valid=restoration.ok, verdict_ok=verdict.ok if isinstance(verdict, Verdict) else None
    )


def _compared(
    judging: Judging,
    restoration: Restored,
    model: Path,
    data: Data,
    io: str,
    limit: TimeLimit,
    progress: Progress | None,
) -> Verdict | AmpRewriteError:
    """Compare the half model with the restored one; return the verdict, or the reason for none."""
    borders = IOTypes.HALF if io == "float" else IOTypes.KEEP
    try:
        with limit.running():
            verdict = judging.verdict(Path(restoration.model), model, data, borders, progress)
            verdict = in_flags_of(verdict)
            failed = verdict.failed_run
            return ModelError(f"{model} does not run ({failed})") if failed else verdict
    except AmpRewriteError as error:
        return error


_OFF = "what is far off is its half, which overflows or rounds too much"


def _is_proved(model: Path, restoration: Restored) -> bool:
    """Whether the result provably differs from the half model only in precision, so that half is at fault."""
    try:
        return certify(model, Path(restoration.model)).proved
    except AmpRewriteError:
        return False


def _print(console: Console, restoration: Restored, model: Path) -> None:
    edited = restoration.edited
    console.print(f"{model} -> {restoration.model}")
    console.print(
        f"{plural(edited.widened, 'stored tensor')} widened, {plural(edited.casts_removed, 'Cast')} removed, "
        f"{edited.casts_added:,} added; {restoration.size_before:,} -> {restoration.size_after:,} bytes"
    )
    terminal.print_lines(console, rewrite_output.data_lines(Path(restoration.model)))
    if not (edited.widened or edited.casts_removed or edited.casts_added):
        console.print(f"note     {model} has nothing in half: the result computes what it does")
    if restoration.unscaled:
        changes = plural(restoration.unscaled, "change")
        console.print(f"note     values stored times powers of two are as in the original: {changes}")
    if edited.at_limit:
        names = ", ".join(edited.at_limit[:_SHOWN]) + (", ..." if len(edited.at_limit) > _SHOWN else "")
        count = plural(len(edited.at_limit), "stored tensor")
        console.print(f"note     {count} at a limit of half, such as a mask, not changed: {names}")
    for warning in restoration.warnings:
        console.print(f"warning  {warning}")
    for broken in restoration.broken:
        console.print(Styled(f"NOT VALID  {broken}", "red"))


_SHOWN = 5
