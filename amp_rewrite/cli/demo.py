"""`amp-rewrite demo`: the main job on a small network that needs no download."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite import demo as networks
from amp_rewrite import pipeline
from amp_rewrite.cli.flag_words import as_argument, in_flags
from amp_rewrite.cli.progress import shown_progress, tell
from amp_rewrite.console import Console
from amp_rewrite.errors import MissingPackageError, ModelError, OptionError
from amp_rewrite.files import destination, staging
from amp_rewrite.model import loading
from amp_rewrite.reporting import terminal
from amp_rewrite.running import verification
from amp_rewrite.running.inputs.input_source import InputSource
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
    console = Console()
    original = output / "demo.onnx"
    _refuse_another_model(original)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise destination.unwritable(output, error) from error
    staging.write(networks.network().SerializeToString(), original)
    with shown_progress(quiet=False) as progress:
        result = pipeline.rewrite(original, progress=progress)
        tell(progress, "verify")
        verdict = _verdict(original, result.model)
    terminal.print_summary(console, result.report, str(result.model))
    if isinstance(verdict, MissingPackageError):
        console.print(f"not compared with the original: {in_flags(verdict)}")
    else:
        terminal.print_verdict(console, verdict)
    if not isinstance(verdict, Verdict) or verdict.ok:
        terminal.print_next(console, [f"amp-rewrite explain {as_argument(original)}"])
    if not result.report.ok or (isinstance(verdict, Verdict) and not verdict.ok):
        raise click.exceptions.Exit(1)


def _refuse_another_model(path: Path) -> None:
    """OptionError where a file stands that an earlier demo did not make."""
    if not path.exists():
        return
    try:
        made_by = loading.load(path).model.producer_name
    except ModelError:
        made_by = None
    if made_by != networks.network().producer_name:
        raise OptionError("is not the demo's own file", where=path, remedy="choose another folder with -o")


_SEED = 0


def _verdict(original: Path, rewritten: Path) -> Verdict | MissingPackageError:
    """How the two compare, or that nothing here can run them."""
    try:
        return verification.verify(
            original, rewritten, [networks.feeds(_SEED)], inputs=InputSource(seed=_SEED)
        )
    except MissingPackageError as error:
        return error
