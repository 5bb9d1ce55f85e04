"""`amp-rewrite verify ORIGINAL REWRITTEN`: do the two compute the same?"""

from __future__ import annotations

from pathlib import Path

import click

from amp_rewrite.cli.feed_flags import feed_flags, timeout_flag
from amp_rewrite.cli.judging import Judging, judging_flags
from amp_rewrite.cli.output_flags import json_flag
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.cli.written_files import WritingCommand
from amp_rewrite.console import Console
from amp_rewrite.model import loading, writing
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.stoppable import Limit
from amp_rewrite.reporting import terminal_rewrite
from amp_rewrite.running.inputs.feeds import Data


@click.command(cls=WritingCommand)
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("rewritten", type=click.Path(path_type=Path))
@feed_flags
@judging_flags
@timeout_flag
@click.option(
    "--io",
    type=click.Choice([io.value for io in IOTypes]),
    default="keep",
    show_default=True,
    help="Whether float32 inputs and outputs may be half in REWRITTEN.",
)
@json_flag("verdict")
def verify(
    original: Path,
    rewritten: Path,
    data: Data,
    judging: Judging,
    limit: Limit,
    io: str,
    json_: Path | None,
) -> None:
    """Compare REWRITTEN with ORIGINAL on real or made-up inputs.

    On CUDA where it works; elsewhere on the CPU, with half rounded as a GPU would round it. Exit code 1
    when a tolerance is broken, names, types or shapes differ, or there is nothing finite to compare.
    """
    for path in (original, rewritten):
        loading.load(path)  # what is wrong with a file is said in our words, not in onnxruntime's
    with shown_progress(quiet=False), limit.running():
        verdict = judging.judge(original, rewritten, data, IOTypes(io))
        verdict = judging.with_blame(verdict, original, rewritten, data)
    terminal_rewrite.print_verdict(Console(), verdict, per_node=judging.per_node)
    if json_ is not None:
        writing.write_json(verdict.to_json(), json_)
    if not verdict.ok:
        raise click.exceptions.Exit(1)
