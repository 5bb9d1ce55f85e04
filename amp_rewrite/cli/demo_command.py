"""`amp-rewrite demo`: the main job on a small network that needs no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from amp_rewrite import demo as networks
from amp_rewrite.cli.flags import PATH, Record, command, flag
from amp_rewrite.cli.rewrite_command import rewrite
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.model import loading


@dataclass(frozen=True)
class FolderFlags(Record, title="Files", argument="files"):
    """The folder for the two models."""

    output: Path = flag(
        "--output FOLDER", "Where to write the two models.", PATH, default=Path("amp_rewrite_demo")
    )


@command(FolderFlags)
def demo(files: FolderFlags) -> None:
    """Rewrite a small built-in network, and compare the two.

    It has convolutions, attention, norms and a loop. The output is that of amp-rewrite FOLDER/demo.onnx.
    """
    original = files.output / "demo.onnx"
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
