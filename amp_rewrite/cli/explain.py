"""`amp-rewrite explain MODEL [NODE]`: why every part has the precision that it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from amp_rewrite import explanation_sources
from amp_rewrite.cli.decision_flags import DecisionFlags, decision_flags
from amp_rewrite.cli.explain_answers import Query
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import PATH, switch
from amp_rewrite.cli.html_and_plots import PageMaker, ReportFiles, report_flags
from amp_rewrite.cli.html_placement import Placing
from amp_rewrite.cli.input_flags import counted_flags
from amp_rewrite.cli.output_flags import json_flag
from amp_rewrite.console import Console
from amp_rewrite.errors import OptionError
from amp_rewrite.explanation_sources import DecisionSource, Explanation
from amp_rewrite.model import writing
from amp_rewrite.reporting import summary
from amp_rewrite.reporting.executed_graph import PlacementView
from amp_rewrite.reporting.html_report import HtmlReport
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.reporting.terminal import print_lines
from amp_rewrite.rewriting import result_checks
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data

PLAN = ".json"
"""How the name of a saved plan ends."""


@click.command(cls=WritingCommand)
@click.argument("model", type=PATH)
@click.argument("node", required=False)
@switch("--all", "Print every part of the model with its reason, one line each.", "all_")
@click.option(
    "--why-cast", metavar="VALUE", help="Print why there is a Cast of this value, or one that produces it."
)
@switch(
    "--ranges",
    "Print for every part in half whether its values are proven, or were observed, to fit into half.",
)
@switch("--advice", "Print what would make half faster on Tensor Cores, and its cost.")
@click.option(
    "--device-capability",
    metavar="X.Y",
    help="With --advice: the compute capability of the device; if not given, of this machine's.",
)
@counted_flags
@json_flag("explanation")
@decision_flags
@report_flags
def explain(
    model: Path,
    node: str | None,
    all_: bool,
    why_cast: str | None,
    ranges: bool,
    advice: bool,
    device_capability: str | None,
    data: Data,
    json_: Path | None,
    asked: DecisionFlags,
    report_files: ReportFiles,
) -> None:
    """Say what keeps MODEL, or one NODE of it, in float32.

    MODEL is a model, a rewritten one (which carries its reasons), or a saved plan. No model is written.
    NODE is the name of a node, or of one of its outputs; its chain of causes is printed, with the flag that
    would change it.
    """
    query = Query(
        node=node, why_cast=why_cast, all_=all_, ranges=ranges, advice=advice, capability=device_capability
    )
    query.refuse_contradictions()
    placed: PlacementView | None = None
    with contextlib.nullcontext() if model.suffix == PLAN else result_checks.blaming(lambda: str(model)):
        asked = _sized(model, asked, data)
        found = _explanation(model, asked)
        if report_files.asked:
            page = _page(
                model, asked, found, PageMaker(asked.options.dims.dims, _placing(report_files, model, found))
            )
            report_files.write(page)
            placed = page.placement
        notes = Console(stderr=True)
        for warning in found.warnings:
            notes.print(f"warning  {in_flags(warning)}")
        print_lines(notes, summary.match_lines(matched for matched in found.matched if not matched.nodes))
        answer = query.answer(Console(), found)
        print_lines(notes, _decided_now(model, asked, found))
    if json_ is not None:
        told = {"placement": placed.compared.to_json()} if placed else {}
        writing.write_json({"model": str(model), "from": found.source.value, **answer, **told}, json_)


def _sized(model: Path, asked: DecisionFlags, data: Data) -> DecisionFlags:
    """The flags with the sizes of open dimensions that were given; OptionError for a plan alone."""
    if model.suffix != PLAN:
        return replace(asked, options=replace(asked.options, dims=feeds.given_sizes(model, data)))
    if asked.decided or data.dims or data.paths:
        raise OptionError(
            "a plan alone has decided everything",
            where=model,
            remedy="leave the other flags out, or explain the model with --plan",
        )
    return asked


def _explanation(model: Path, asked: DecisionFlags) -> Explanation:
    """What the decision flags lead to if any is given, else the decisions that a file carries."""
    if model.suffix == PLAN:
        return explanation_sources.of_plan(model)
    if asked.decided:
        return explanation_sources.of_analysis(asked.analyze(model))
    return explanation_sources.of_model(model, asked.options.dims.dims, lambda: asked.analyze(model))


def _decided_now(model: Path, asked: DecisionFlags, found: Explanation) -> Iterator[SummaryLine]:
    """That nothing was read and all was decided now, where that is so."""
    if found.source is DecisionSource.ANALYSIS:
        flags = "these flags" if asked.decided else "the defaults"
        shown = f"this is what a rewrite with {flags} would decide"
        yield SummaryLine("note", f"{model.name} carries no decisions of a rewrite; {shown}")


def _placing(report_files: ReportFiles, model: Path, found: Explanation) -> Placing | None:
    """Where it is asked for; the original of what was rewritten before is not known."""
    if not report_files.placement:
        return None
    return Placing(None if found.source is DecisionSource.METADATA else model)


def _page(model: Path, asked: DecisionFlags, found: Explanation, pages: PageMaker) -> HtmlReport:
    if found.source is DecisionSource.METADATA:
        return pages.of_rewritten(model, found)
    if model.suffix == PLAN:
        raise OptionError(
            "a plan alone has no graph to draw",
            where=model,
            remedy="explain the model with --plan",
        )
    return pages.of_plan(model, asked.analyze(model))
