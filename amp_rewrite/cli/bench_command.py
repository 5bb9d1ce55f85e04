"""`amp-rewrite bench A [B ...]`: time models against each other."""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli.flags import PATH, command
from amp_rewrite.cli.output_files import ReportFlags, WritingCommand
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.records import BenchFlags, Inputs, Limit
from amp_rewrite.console import Console
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import tell
from amp_rewrite.reporting import terminal
from amp_rewrite.running import latency, sessions
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.latency import TimedModel
from amp_rewrite.tuning.comparing import naming_sizes


@command(BenchFlags, Inputs, Limit, ReportFlags, kind=WritingCommand)
@click.argument("models", nargs=-1, required=True, type=PATH, metavar="A [B ...]")
def bench(
    models: tuple[Path, ...], runtime: BenchFlags, data: Data, limit: TimeLimit, files: ReportFlags
) -> None:
    """Time models on the same inputs, each against the first.

    Synthetic inputs are those of A, and all models must take them. Each round runs every model once, every
    second one in reverse: A B B A.
    """
    libraries = sessions.check_libraries(runtime.custom_ops)
    name, _, tf32 = (runtime.provider or "").partition("-")
    device = sessions.check_device(name or None)
    subjects = [TimedModel(str(path), path, bool(tf32), libraries) for path in models]
    with shown_progress() as progress, limit.running():
        tell(progress, "measure")
        with naming_sizes(models[0], data):
            samples = list(feeds.feeds(models[0], data))
            measured = latency.measure(subjects, samples, device, runtime.budget)
    terminal.print_bench(Console(), measured)
    files.report(measured.to_json())
