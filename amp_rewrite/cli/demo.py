"""`amp-rewrite demo`: the main job on a small network that needs no download."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from amp_rewrite import demo as networks
from amp_rewrite import pipeline, writing
from amp_rewrite.cli.flag_words import in_flags
from amp_rewrite.cli.progress import shown_progress, tell
from amp_rewrite.errors import MissingPackageError
from amp_rewrite.reporting import terminal
from amp_rewrite.running import verification
from amp_rewrite.running.verification import Verdict


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("amp_rewrite_demo"),
    show_default=True,
    metavar="FOLDER",
    help="Where the two models go.",
)
def demo(output: Path) -> None:
    """Make a small network (convolutions, attention, norms, a loop), rewrite it and compare the two."""
    console = terminal.plain_console()
    original = output / "demo.onnx"
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise writing.unwritable(output, error) from error
    writing.write(networks.network().SerializeToString(), original)
    with shown_progress(quiet=False) as progress:
        result = pipeline.rewrite(original, progress=progress)
        tell(progress, "verify")
        verdict = _verdict(original, result.model)
    hint = f"amp-rewrite explain {original}"
    terminal.print_summary(console, result.report, str(result.model), [hint])
    if isinstance(verdict, MissingPackageError):
        console.print(Text(f"not compared with the original: {in_flags(verdict)}"))
    else:
        terminal.print_verdict(console, verdict)
    if not result.report.ok or (isinstance(verdict, Verdict) and not verdict.ok):
        raise click.exceptions.Exit(1)


def _verdict(original: Path, rewritten: Path) -> Verdict | MissingPackageError:
    """How the two compare, or that nothing here can run them."""
    try:
        return verification.verify(original, rewritten, [networks.feeds()])
    except MissingPackageError as error:
        return error
