"""`amp-rewrite demo`: the main job on a small network that needs no download."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite import demo as networks
from amp_rewrite.cli.flag_builders import PATH, SectionedCommand
from amp_rewrite.cli.rewrite_command import rewrite
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.model import loading


@click.command(cls=SectionedCommand)
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
    """Rewrite a small built-in network, and compare the two.

    It has convolutions, attention, norms and a loop. The output is that of amp-rewrite FOLDER/demo.onnx.
    """
    original = output / "demo.onnx"
    _refuse_another_model(original)
    staging.write(networks.network().SerializeToString(), original)
    with rewrite.make_context("amp-rewrite", ["--", str(original)]) as context:
        rewrite.invoke(context)


def _refuse_another_model(path: Path) -> None:
    """Raise OptionError for a file at the path that no earlier demo has written."""
    if not path.exists():
        return
    try:
        producer = loading.load(path).model.producer_name
    except ModelError:
        producer = None
    if producer != networks.network().producer_name:
        raise OptionError("is not the demo's own file", where=path, remedy="choose another folder with -o")
