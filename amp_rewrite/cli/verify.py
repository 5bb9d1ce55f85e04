"""`amp-rewrite verify ORIGINAL REWRITTEN`: do the two compute the same?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from amp_rewrite import model_io
from amp_rewrite.cli.feed_flags import feed_flags
from amp_rewrite.cli.progress import shown_progress
from amp_rewrite.options import Borders
from amp_rewrite.reporting import terminal
from amp_rewrite.running import feeds, metrics, verification
from amp_rewrite.running.blame import blame
from amp_rewrite.running.feeds import Data
from amp_rewrite.running.verification import Verdict


@click.command()
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("rewritten", type=click.Path(path_type=Path))
@feed_flags
@click.option(
    "--tolerance",
    multiple=True,
    metavar="NAME=BOUND",
    help="A bound of the verdict, such as relative_l2=0.02 or top1=0.99; NAME=none takes one away.",
)
@click.option(
    "--io",
    type=click.Choice([b.value for b in Borders]),
    default="keep",
    show_default=True,
    help="Whether float32 inputs and outputs may be half in REWRITTEN.",
)
@click.option("--per-node", is_flag=True, help="Say which nodes add most error, also when all is well.")
@click.option(
    "--json", "json_", type=click.Path(path_type=Path), metavar="FILE", help="Write the verdict as JSON."
)
def verify(
    original: Path,
    rewritten: Path,
    data: Data,
    tolerance: tuple[str, ...],
    io: str,
    per_node: bool,
    json_: Path | None,
) -> None:
    """Compare REWRITTEN with ORIGINAL on real or made-up inputs.

    On CUDA where it works; elsewhere on the CPU, with half rounded as a GPU would round it. Exit code 1
    when a tolerance is broken, or names, types or shapes differ.
    """
    bounds = metrics.tolerances(tolerance)
    model_io.load(original), model_io.load(rewritten)
    with shown_progress(quiet=False):
        samples = feeds.feeds(original, data)
        verdict = verification.verify(original, rewritten, samples, bounds, borders=Borders(io))
        if per_node or not verdict.ok:
            verdict = with_blame(verdict, original, rewritten, data)
    terminal.print_verdict(Console(highlight=False, soft_wrap=True), verdict, per_node=per_node)
    if json_ is not None:
        model_io.write((json.dumps(verdict.to_json(), indent=1) + "\n").encode(), json_)
    if not verdict.ok:
        raise click.exceptions.Exit(1)


def with_blame(verdict: Verdict, original: Path, rewritten: Path, data: Data) -> Verdict:
    """The verdict with the blame of the first sample."""
    first = next(iter(feeds.feeds(original, data)))
    return replace(verdict, blame=blame(original, rewritten, first))
