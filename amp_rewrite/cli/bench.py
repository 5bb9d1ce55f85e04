"""`amp-rewrite bench A [B ...]`: how long models take, beside each other."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli.feed_flags import feed_flags, naming_sizes, timeout_flag
from amp_rewrite.cli.output_flags import json_flag
from amp_rewrite.cli.progress import shown_progress, tell
from amp_rewrite.cli.touched_files import WRITTEN
from amp_rewrite.cli.written_files import WritingCommand
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.model import writing
from amp_rewrite.process.stoppable import Limit
from amp_rewrite.reporting import charts, picture_files, timings
from amp_rewrite.running import latency
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.latency import TimingBudget
from amp_rewrite.running.prepared_runs import TimedModel
from amp_rewrite.running.sessions import Device


@click.command(cls=WritingCommand)
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="A [B ...]")
@feed_flags
@timeout_flag
@click.option(
    "--provider",
    type=click.Choice(["cuda", "cpu"], case_sensitive=False),
    help="Where to run; CUDA where it works, if not given.",
)
@click.option("--tf32", is_flag=True, help="On CUDA, let float32 products be rounded to TF32.")
@click.option("--rounds", type=click.IntRange(min=1), default=200, show_default=True, help="Rounds at most.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=10, show_default=True, help="Rounds that do not count."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    help="After so long, no further round begins.",
)
@json_flag("figures")
@click.option(
    "--chart",
    type=WRITTEN,
    metavar="FILE",
    help="Draw the latencies: an .svg, or a .png with matplotlib.",
)
def bench(
    models: tuple[Path, ...],
    data: Data,
    limit: Limit,
    provider: str | None,
    tf32: bool,
    rounds: int,
    warmup: int,
    seconds: float,
    json_: Path | None,
    chart: Path | None,
) -> None:
    """Time models on the same inputs, in turn, and compare each with the first.

    The inputs are made for A, and all models must take them. Each round runs every model once: A B A B.
    """
    if chart is not None:
        picture_files.drawing(chart)  # what cannot be drawn is said before minutes have passed
    device = latency.device_for(provider)
    if tf32 and device is not Device.CUDA:
        raise OptionError("--tf32 is for CUDA, and this runs on the CPU", remedy="leave it out")
    subjects = [TimedModel(str(path), path, tf32) for path in models]
    with shown_progress(quiet=False) as progress, limit.running():
        tell(progress, "measure")
        with naming_sizes(models[0], data):
            samples = list(feeds.feeds(models[0], data))
            made = latency.measure(subjects, samples, device, TimingBudget(rounds, warmup, seconds))
    timings.print_bench(Console(), made)
    if json_ is not None:
        writing.write_json(made.to_json(), json_)
    if chart is not None:
        picture_files.write(charts.chart(made), chart)
