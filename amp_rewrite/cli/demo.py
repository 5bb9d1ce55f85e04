"""`amp-rewrite demo`: the main job on a small network that needs no download."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite import demo as networks
from amp_rewrite import pipeline
from amp_rewrite.cli import exit_codes
from amp_rewrite.cli.fields_as_flags import as_argument, in_flags
from amp_rewrite.cli.flag_builders import PATH
from amp_rewrite.cli.progress import shown_progress, tell
from amp_rewrite.console import Console
from amp_rewrite.errors import MissingPackageError, ModelError, OptionError
from amp_rewrite.files import destination, staging
from amp_rewrite.model import loading
from amp_rewrite.reporting import terminal_rewrite
from amp_rewrite.running import verification
from amp_rewrite.running.inputs.input_source import InputSource
from amp_rewrite.running.verdict import Verdict


@click.command()
@click.option(
    "-o",
    "--output",
    type=PATH,
    default=Path("amp_rewrite_demo"),
    show_default=True,
    metavar="FOLDER",
    help="Where to write the two models.",
)
def demo(output: Path) -> None:
    """Build a small network (convolutions, attention, norms, a loop), rewrite it and compare the two."""
    console = Console()
    original = output / "demo.onnx"
    _refuse_another_model(original)
    destination.make_folder(output)
    staging.write(networks.network().SerializeToString(), original)
    with shown_progress() as progress:
        result = pipeline.rewrite(original, progress=progress)
        tell(progress, "verify")
        verdict = _verdict(original, result.model)
    terminal_rewrite.print_summary(console, result.report, str(result.model))
    if isinstance(verdict, Verdict):
        terminal_rewrite.print_verdict(console, verdict)
    else:
        console.print(f"not compared with the original: {in_flags(verdict)}")
    passed = verdict.ok if isinstance(verdict, Verdict) else None
    if passed is not False:
        terminal_rewrite.print_hints(console, [f"amp-rewrite explain {as_argument(original)}"])
    exit_codes.end_rewrite(valid=result.report.ok, passed=passed)


def _refuse_another_model(path: Path) -> None:
    """OptionError for a file at the path that no earlier demo has written."""
    if not path.exists():
        return
    try:
        producer = loading.load(path).model.producer_name
    except ModelError:
        producer = None
    if producer != networks.network().producer_name:
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
