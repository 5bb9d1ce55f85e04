"""`amp-rewrite explain MODEL [NODE]`: why every part has the precision that it has."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from amp_rewrite import explaining
from amp_rewrite.cli import feed_flags
from amp_rewrite.cli.flags import Asked, decision_flags
from amp_rewrite.cli.json_files import json_flag, write_json
from amp_rewrite.cli.showing import Showing, of_plan, of_rewritten, showing_flags
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining import Dims, Explanation, Source
from amp_rewrite.names import graphs
from amp_rewrite.reporting import cast_stories, explained
from amp_rewrite.reporting.advice import words
from amp_rewrite.reporting.advice.capability import of_this_machine, parse
from amp_rewrite.reporting.coverage.assumptions import assumptions
from amp_rewrite.reporting.page import Page
from amp_rewrite.reporting.sentences import chain, first_step
from amp_rewrite.reporting.terminal import plain_console

PLAN = ".json"
"""How the name of a saved plan ends."""


@click.command()
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
@click.option(
    "--dim",
    multiple=True,
    metavar="NAME=SIZE",
    help="The size of an open dimension, by symbol or as INPUT:AXIS; others count as 1.",
)
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
    _refuse_two_questions(node, why_cast, all_=all_, advice=advice)
    if device_capability is not None and not advice:
        raise OptionError("--device-capability is for --advice", remedy="add --advice, or leave it out")
    console = plain_console()
    dims = feed_flags.dims(dim)
    found = _explanation(model, asked, dims)
    if showing.asked:
        showing.write(_page(model, asked, found, dims))
    for warning in found.warnings:
        plain_console(stderr=True).print(Text(f"warning  {warning}"))
    if advice:
        told = _tell_advice(console, found, device_capability)
    elif all_:
        told = _tell_all(console, found)
    elif why_cast is not None:
        told = _tell_cast(console, found, why_cast)
    elif node is not None:
        told = _tell_node(console, found, node)
    else:
        told = _tell_causes(console, found)
    if json_ is not None:
        write_json({"model": str(model), "from": found.source.value, **told}, json_)


def _refuse_two_questions(node: str | None, why_cast: str | None, *, all_: bool, advice: bool) -> None:
    asked = [("NODE", node), ("--why-cast", why_cast), ("--all", all_ or None), ("--advice", advice or None)]
    given = [name for name, value in asked if value is not None]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} are two questions", remedy="ask one at a time")


def _explanation(model: Path, asked: Asked, dims: Mapping[str, int]) -> Explanation:
    """Decisions that were asked for now count before those that a file carries."""
    if model.suffix == PLAN:
        if asked.decided or dims:
            raise OptionError(
                "a plan alone has decided everything",
                where=model,
                remedy="leave the other flags out, or explain the model with --plan",
            )
        return explaining.of_plan(model)
    if asked.decided:
        return explaining.of_analysis(asked.analyze(model), dims, replayed=asked.replay is not None)
    return explaining.of_model(model, dims, lambda: asked.analyze(model))


def _page(model: Path, asked: Asked, found: Explanation, dims: Dims) -> Page:
    if found.source is Source.METADATA:
        return of_rewritten(model, found, dims)
    if model.suffix == PLAN:
        raise OptionError(
            "a plan alone has no graph to draw",
            where=model,
            remedy="explain the model with --plan",
        )
    return of_plan(model, asked.analyze(model), asked, dims)


Told = dict[str, Any]
"""What was told, as plain data."""


def _tell_all(console: Console, found: Explanation) -> Told:
    explained.print_units(console, found.decisions)
    units = range(len(found.decisions.all))
    return {"units": [first_step(found.decisions, unit).to_json() for unit in units]}


def _tell_causes(console: Console, found: Explanation) -> Told:
    explained.print_causes(console, found.causes)
    rests = [] if found.measured is None else list(assumptions(found.measured.work))
    if found.causes:
        for line in (*rests, *_ABOUT_FLAGS[found.source]):
            console.print(Text(line, style="dim"))
    return {"causes": [cause.to_json() for cause in found.causes], "assumptions": rests}


_ABOUT_FLAGS = {
    Source.ANALYSIS: (),
    Source.METADATA: ("the flags are for a rewrite of the original",),
    Source.PLAN: ("the flags are for a new plan: beside --plan none is taken",),
}


def _tell_advice(console: Console, found: Explanation, asked: str | None) -> Told:
    capability = parse(asked) if asked is not None else of_this_machine()
    given = found.advice(capability)
    for line in words.lines(given):
        console.print(Text(line))
    return {"advice": given.to_json()}


def _tell_cast(console: Console, found: Explanation, name: str) -> Told:
    stories = cast_stories.about(found.decisions, name)
    if not stories:
        raise _no_cast(found, name)
    for story in stories:
        explained.print_story(console, story)
    return {"casts": [story.to_json() for story in stories]}


def _no_cast(found: Explanation, name: str) -> OptionError:
    if any(name in _names_of(found, unit) for unit in range(len(found.decisions.all))):
        return OptionError(f"no Cast of '{name}'", remedy="who makes it and who reads it have one type")
    known = [known for crossing in found.decisions.crossings for known in crossing.names]
    return OptionError(f"no Cast of '{name}'", remedy=_near(name, known, "the model has or gets none"))


def _tell_node(console: Console, found: Explanation, name: str) -> Told:
    units = [unit for unit in range(len(found.decisions.all)) if name in _names_of(found, unit)]
    if not units and cast_stories.about(found.decisions, name):
        return _tell_cast(console, found, name)
    if not units:
        raise _no_node(found, name)
    chains = [chain(found.decisions, unit) for unit in units]
    for steps in chains:
        explained.print_chain(console, steps)
    told = [{"unit": steps[0].unit, "chain": [step.to_json() for step in steps]} for steps in chains]
    return {"node": name, "units": told}


def _names_of(found: Explanation, unit: int) -> tuple[str, ...]:
    decision = found.decisions.all[unit]
    return (decision.name, *decision.made)


def _no_node(found: Explanation, name: str) -> OptionError:
    if name in _without_units(found):
        return OptionError(f"'{name}' has no float32 in it", remedy="there is nothing to decide")
    known = (known for unit in range(len(found.decisions.all)) for known in _names_of(found, unit))
    offer = "leave it out to see what holds nodes back, or say --all"
    return OptionError(f"no node is called '{name}'", remedy=_near(name, list(filter(None, known)), offer))


def _without_units(found: Explanation) -> Iterator[str | None]:
    for graph in graphs(found.measured.model.graph) if found.measured is not None else ():
        for node in graph:
            yield node.name
            yield from (value.name for value in node.outputs)


def _near(name: str, known: list[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, dict.fromkeys(known), n=3)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
