"""`amp-rewrite bench A [B ...]`: time models against each other."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import PATH, choice, json_flag, number, switch
from amp_rewrite.cli.input_flags import custom_ops_flag, input_flags, timeout_flag
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.model import writing
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import tell
from amp_rewrite.reporting import terminal
from amp_rewrite.running import latency, sessions
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.latency import SECONDS, TimedModel
from amp_rewrite.running.sessions import Device, Libraries
from amp_rewrite.tuning.comparing import naming_sizes


@click.command(cls=WritingCommand)
@click.argument("models", nargs=-1, required=True, type=PATH, metavar="A [B ...]")
@input_flags
@timeout_flag
@choice("--provider", ["cuda", "cpu"], "Where to run; if not given, CUDA where it works, else the CPU.")
@switch("--tf32", "On CUDA, let float32 products use TF32.")
@number(
    "--seconds",
    click.FloatRange(min=0),
    "How long to measure: no round begins after that.",
    SECONDS,
    metavar="SECONDS",
)
@custom_ops_flag
@json_flag("figures")
def bench(
    models: tuple[Path, ...],
    data: Data,
    limit: TimeLimit,
    provider: str | None,
    tf32: bool,
    seconds: float,
    custom_ops: Libraries,
    json_: Path | None,
) -> None:
    """Time models on the same inputs, each against the first.

    Synthetic inputs are those of A, and all models must take them. Each round runs every model once, every
    second one in reverse: A B B A.
    """
    sessions.check_libraries(custom_ops)
    device = sessions.check_device(provider)
    if tf32 and device is not Device.CUDA:
        where = "the CPU" if device is Device.CPU else device.value
        raise OptionError(f"--tf32 is for CUDA, and this runs on {where}", remedy="leave it out")
    subjects = [TimedModel(str(path), path, tf32, custom_ops) for path in models]
    with shown_progress() as progress, limit.running():
        tell(progress, "measure")
        with naming_sizes(models[0], data):
            samples = list(feeds.feeds(models[0], data))
            measured = latency.measure(subjects, samples, device, seconds)
    terminal.print_bench(Console(), measured)
    if json_ is not None:
        writing.write_json(measured.to_json(), json_)
