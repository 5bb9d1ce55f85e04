"""`amp-rewrite explain MODEL [NODE]`: why every part has the precision that it has."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from amp_rewrite import explanation
from amp_rewrite.cli import feed_flags
from amp_rewrite.cli.flag_words import in_flags
from amp_rewrite.cli.flags import Asked, decision_flags
from amp_rewrite.cli.output_flags import json_flag
from amp_rewrite.cli.questions import Question
from amp_rewrite.cli.showing import Showing, of_plan, of_rewritten, showing_flags
from amp_rewrite.cli.written_files import WritingCommand
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.explanation import DecisionSource, Explanation
from amp_rewrite.flops.open_dimensions import Dims
from amp_rewrite.model import writing
from amp_rewrite.reporting import summary
from amp_rewrite.reporting.html_report import HtmlReport
from amp_rewrite.reporting.terminal_rewrite import print_lines
from amp_rewrite.rewriting import checking

PLAN = ".json"
"""How the name of a saved plan ends."""


@click.command(cls=WritingCommand)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("node", required=False)
@click.option("--all", "all_", is_flag=True, help="Every part of the model with its reason, a line each.")
@click.option("--why-cast", metavar="VALUE", help="Why a Cast of this value, or one that makes it, stands.")
@click.option("--advice", is_flag=True, help="What would make half faster on Tensor Cores, and at what cost.")
@click.option(
    "--device-capability",
    metavar="X.Y",
    help="With --advice: the compute capability of the device; that of this machine if it has one.",
)
@feed_flags.counted_dim_flag
@json_flag("explanation")
@decision_flags
@showing_flags
def explain(
    model: Path,
    node: str | None,
    all_: bool,
    why_cast: str | None,
    advice: bool,
    device_capability: str | None,
    dim: tuple[str, ...],
    json_: Path | None,
    asked: Asked,
    showing: Showing,
) -> None:
    """Say what holds parts of MODEL back in float32; for one NODE, with the chain of causes.

    MODEL is a model, one that was rewritten (it carries its reasons), or a saved plan. No model is written.
    NODE is a node's name, or that of a value it makes.
    """
    question = Question(node=node, why_cast=why_cast, all_=all_, advice=advice, capability=device_capability)
    question.refuse_nonsense()
    dims = feed_flags.dims(dim)
    with contextlib.nullcontext() if model.suffix == PLAN else checking.blaming(lambda: str(model)):
        found = _explanation(model, asked, dims)
        _show(showing, model, asked, found, dims)
        for warning in found.warnings:
            Console(stderr=True).print(f"warning  {in_flags(warning)}")
        unmatched = (matched for matched in found.matched if not matched.nodes)
        print_lines(Console(stderr=True), summary.match_lines(unmatched))
        told = question.tell(Console(), found)
    if json_ is not None:
        writing.write_json({"model": str(model), "from": found.source.value, **told}, json_)


def _explanation(model: Path, asked: Asked, dims: Dims) -> Explanation:
    """Decisions that were asked for now count before those that a file carries."""
    if model.suffix == PLAN:
        if asked.decided or dims:
            raise OptionError(
                "a plan alone has decided everything",
                where=model,
                remedy="leave the other flags out, or explain the model with --plan",
            )
        return explanation.of_plan(model)
    if asked.decided:
        return explanation.of_analysis(asked.analyze(model), dims)
    return explanation.of_model(model, dims, lambda: asked.analyze(model))


def _show(showing: Showing, model: Path, asked: Asked, found: Explanation, dims: Dims) -> None:
    if showing.asked:
        showing.write(_page(model, asked, found, dims))


def _page(model: Path, asked: Asked, found: Explanation, dims: Dims) -> HtmlReport:
    if found.source is DecisionSource.METADATA:
        return of_rewritten(model, found, dims)
    if model.suffix == PLAN:
        raise OptionError(
            "a plan alone has no graph to draw",
            where=model,
            remedy="explain the model with --plan",
        )
    return of_plan(model, asked.analyze(model), dims)
