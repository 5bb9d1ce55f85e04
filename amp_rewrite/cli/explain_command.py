"""`amp-rewrite explain MODEL [NODE]`: explain the precision of every part of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.decisions import DecisionFlags, DecisionRequest
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flags import PATH, Record, command, flag, given_flags
from amp_rewrite.cli.html_page import PageMaker
from amp_rewrite.cli.output_files import PageFile, WritingCommand
from amp_rewrite.cli.records import SizeFlags
from amp_rewrite.console import Console, Styled
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining import cases, rules, sentences
from amp_rewrite.explaining.sentences import chain, first_step
from amp_rewrite.explaining.suggestions import NodeRemedy
from amp_rewrite.model import loading
from amp_rewrite.model.traversal import every_node
from amp_rewrite.policy.devices import Device
from amp_rewrite.reporting import explanations, page, summary, terminal
from amp_rewrite.reporting.explanations import DecisionSource, Explanation
from amp_rewrite.reporting.page import Page
from amp_rewrite.reporting.terminal import print_lines
from amp_rewrite.rewriting import plan_files, records, result_checks
from amp_rewrite.rewriting.report import SummaryLine
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.text import nearest

Answer = dict[str, Any]
"""An answer as plain data."""


def _query(
    model: Path, node: str | None, shows: Sequence[str], device: Device
) -> Callable[[Console, Explanation], Answer]:
    """Return the function that prints and returns the answer, by default the root causes.

    Raises OptionError for two queries at once.
    """
    queries = {
        "NODE": None if node is None else partial(_answer_node, name=node),
        "--show all": _answer_all if "all" in shows else None,
        "--show ranges": _answer_ranges if "ranges" in shows else None,
        "--show advice": partial(_answer_advice, device=device) if "advice" in shows else None,
        "--show case": partial(_answer_case, model=model) if "case" in shows else None,
    }
    asked = {name: answer for name, answer in queries.items() if answer}
    if len(asked) > 1:
        raise OptionError(f"{' and '.join(asked)} cannot be combined", remedy="ask for one at a time")
    return next(iter(asked.values()), _answer_causes)


def _answer_all(console: Console, explanation: Explanation) -> Answer:
    terminal.print_units(console, explanation.decisions)
    units = range(len(explanation.decisions.all))
    return {"units": records.plain([first_step(explanation.decisions, unit) for unit in units])}


def _answer_ranges(console: Console, explanation: Explanation) -> Answer:
    intervals = explanation.ranges()
    terminal.print_ranges(console, explanation.decisions, intervals, explanation.half)
    units = [
        {"unit": explanation.decisions.label(unit), **each.to_json()}
        for unit, each in intervals.units.items()
    ]
    return {"ranges": {**intervals.counts.to_json(), "units": units}}


def _answer_case(console: Console, explanation: Explanation, model: Path) -> Answer:
    if explanation.source is not DecisionSource.ANALYSIS:
        raise OptionError(
            "the case of a model is of the float32 one", where=model, remedy="give the original"
        )
    flags = given_flags(without=("show", "json_", "html"))
    title = " ".join((f"What a rewrite decides on {model.stem}.", *([f"[{flags}]"] if flags else [])))
    case = cases.case(loading.load_graph(model), title, cases.claims(explanation.decisions))
    for line in case.splitlines():
        console.whole(line)
    return {"case": case}


def _answer_causes(console: Console, explanation: Explanation) -> Answer:
    terminal.print_causes(console, explanation.causes)
    assumptions = list(explanation.assumptions)
    untried = any(not cause.suggestion.is_tried for cause in explanation.causes)
    about_flags = [_NO_FLAG_TRIED[explanation.source]] if untried else []
    for line in (*assumptions, *about_flags) if explanation.causes else ():
        console.print(Styled(line, "dim"))
    causes = [cause.to_json() for cause in explanation.causes]
    return {"causes": causes, "assumptions": assumptions, "about_flags": about_flags}


_NO_FLAG_TRIED = {
    DecisionSource.ANALYSIS: "",
    DecisionSource.METADATA: "no flag was tried: that needs the original (amp-rewrite explain ORIGINAL)",
    DecisionSource.PLAN: "no flag was tried: that needs the model (amp-rewrite explain MODEL)",
}


def _answer_advice(console: Console, explanation: Explanation, device: Device) -> Answer:
    advice = explanation.advice(device)
    for line in advice.lines():
        console.print(line)
    for line in explanation.assumptions if advice.paddings else ():
        console.print(Styled(line, "dim"))
    return {"advice": records.plain(advice)}


def _answer_node(console: Console, explanation: Explanation, name: str) -> Answer:
    units = _units_of(explanation, name)
    forms = [sentences.of(change) for change in explanation.form_changes if change.node == name]
    casts = sentences.about(explanation.decisions, name)
    if not (units or forms or casts):
        raise _no_node(explanation, name)
    for form in forms:
        console.print(f"{name}: {form}")
    outputs = dict.fromkeys(each for unit in units for each in explanation.decisions.all[unit].outputs)
    exponents = {each: e for each in outputs if (e := explanation.exponents.get(each))}
    for value, e in exponents.items():
        rescaled = explanation.analysis.plan.rescaled if explanation.analysis is not None else None
        console.print(f"{value}: {sentences.stored_as(e, rescaled)}")
    chains = [chain(explanation.decisions, unit) for unit in units]
    remedies = _remedies(explanation, units)
    for steps, lines in zip(chains, remedies, strict=True):
        terminal.print_chain(console, steps)
        for line in lines:
            console.whole(Styled(f"  {line}", "cyan"))
    for cast in casts:
        terminal.print_cast(console, cast)
    rests = explanation.assumptions if any("FLOPs" in line for lines in remedies for line in lines) else ()
    for line in (*rests, *filter(None, [_NO_FLAG_TRIED[explanation.source] if chains else ""])):
        console.print(Styled(line, "dim"))
    units_ = [
        {"unit": steps[0].unit, "chain": records.plain(steps), "change": lines}
        for steps, lines in zip(chains, remedies, strict=True)
    ]
    answer = {"node": name, "form": forms, "units": units_, "exponents": exponents}
    return {**answer, "casts": records.plain(casts)}


def _remedies(explanation: Explanation, units: Sequence[int]) -> list[list[str]]:
    """Describe the flags that change the colour of each unit; no lines where no flag can be tried."""
    per_unit = explanation.remedies(units)
    if not per_unit:
        return [[] for _ in units]
    return [_changing(explanation, unit, remedy) for unit, remedy in zip(units, per_unit, strict=True)]


def _changing(explanation: Explanation, unit: int, remedy: NodeRemedy) -> list[str]:
    freeing = [sentences.remedy(remedy.cause)] if remedy.cause is not None else []
    if remedy.pin is None or (remedy.cause is not None and remedy.pin in remedy.cause.suggestion.adds):
        return freeing
    colour = "float32" if explanation.decisions.all[unit].is_half else explanation.half
    return [*freeing, f"this node in {colour} (not compared): {remedy.pin.flag}"]


def _units_of(explanation: Explanation, name: str) -> list[int]:
    """Return the units of the nodes that have this name, or an output of this name."""
    decisions = enumerate(explanation.decisions.all)
    return [unit for unit, decision in decisions if name in (decision.node, *decision.outputs)]


def _no_node(explanation: Explanation, name: str) -> OptionError:
    if name in _without_units(explanation):
        return OptionError(f"'{name}' has no float32 in it", remedy="name a node that has")
    decided = explanation.decisions.all
    candidates = [each for decision in decided for each in (decision.node, *decision.outputs) if each]
    candidates += [each for site in explanation.decisions.cast_sites for each in site.names]
    of_operator = (each.node for each in decided if each.operator == name and each.node)
    near = next(of_operator, None) or nearest(name, dict.fromkeys(candidates))
    offer = "leave NODE out to see what keeps nodes in float32, or say --show all"
    return OptionError(f"no node is called '{name}'", remedy=f"did you mean {near}?" if near else offer)


def _without_units(explanation: Explanation) -> Iterator[str | None]:
    for node in every_node(explanation.counted.model.graph) if explanation.counted is not None else ():
        yield node.name
        yield from (value.name for value in node.outputs)


_SHOWN = {
    "all": "every part of the model with its reason, one line each",
    "ranges": "for every part in half whether its values are proven, or were observed, to fit into half",
    "case": "a small model and its decisions as text, in the format of the tests",
    "advice": "what would make half faster on Tensor Cores, and its cost",
}


@dataclass(frozen=True)
class ExplainFlags(Record, title="What to print", argument="printing"):
    """What is shown besides."""

    show: tuple[str, ...] = flag("--show", "Show more:", words=_SHOWN)


def _print_rule(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """Print a rule in place of all else."""
    if name is not None:
        for line in in_flags(rules.describe(name)).splitlines():
            Console().whole(line)
        context.exit()


@command(ExplainFlags, PageFile, DecisionFlags, SizeFlags, kind=WritingCommand)
@click.argument("model", type=PATH)
@click.argument("node", required=False)
@click.option(
    "--rule",
    metavar="NAME",
    is_eager=True,
    expose_value=False,
    callback=_print_rule,
    help="Explain a rule, such as absorption, and exit.",
)
def explain(
    model: Path, node: str | None, printing: ExplainFlags, files: PageFile, asked: DecisionRequest, data: Data
) -> None:
    """Say what keeps MODEL, or one NODE of it, in float32.

    MODEL is a model, a rewritten one (which carries its reasons), or a saved plan. No model is written.
    NODE is the name of a node, or of one of its outputs; its chain of causes is printed, with the flag that
    would change it. Of a value that is cast, or an added Cast, it says why the Cast is there.
    """
    query = _query(model, node, printing.show, asked.options.device)
    is_plan = plan_files.is_plan(model)
    with contextlib.nullcontext() if is_plan else result_checks.blaming(lambda: str(model)):
        asked = _alone(model, asked, data) if is_plan else _sized(model, asked, data)
        explanation = _explanation(model, asked)
        if files.html is not None:
            page.write(_page(model, explanation, PageMaker(asked.options.dims.dims)), files.html)
        notes = Console(stderr=True)
        for warning in explanation.warnings:
            notes.print(f"warning  {in_flags(warning)}")
        print_lines(
            notes, summary.match_lines(matched for matched in explanation.matched if not matched.nodes)
        )
        answer = query(Console(), explanation)
        print_lines(notes, _decided_now(model, asked, explanation))
    files.report({"model": str(model), "from": explanation.source.value, **answer})


def _sized(model: Path, decisions: DecisionRequest, data: Data) -> DecisionRequest:
    """Bind open dimensions to the given sizes."""
    return replace(decisions, options=replace(decisions.options, dims=feeds.given_sizes(model, data)))


def _alone(model: Path, decisions: DecisionRequest, data: Data) -> DecisionRequest:
    """Return the flags beside a plan without its model; raise OptionError for any that would decide."""
    if decisions.decided or data.dims or data.paths:
        raise OptionError(
            "a plan alone has decided everything",
            where=model,
            remedy="leave the other flags out, or explain the model with --plan",
        )
    return decisions


def _explanation(model: Path, decisions: DecisionRequest) -> Explanation:
    """Explain the decisions that the flags make if any is written, else those that the file carries."""
    if plan_files.is_plan(model):
        return explanations.of_plan(model)
    if decisions.decided:
        return explanations.of_analysis(decisions.analyze(model))
    return explanations.of_model(model, decisions.options.dims.dims, lambda: decisions.analyze(model))


def _decided_now(model: Path, decisions: DecisionRequest, explanation: Explanation) -> Iterator[SummaryLine]:
    """Yield a note if the file carries no decisions, so that they come from a new analysis."""
    if explanation.source is DecisionSource.ANALYSIS:
        flags = "these flags" if decisions.decided else "the defaults"
        origin = f"this is what a rewrite with {flags} decides first, before it compares"
        yield SummaryLine("note", f"{model.name} carries no decisions of a rewrite; {origin}")


def _page(model: Path, explanation: Explanation, pages: PageMaker) -> Page:
    if explanation.source is DecisionSource.METADATA:
        return pages.of_rewritten(model, explanation)
    if explanation.analysis is None:
        raise OptionError(
            "a plan alone has no graph to draw",
            where=model,
            remedy="explain the model with --plan",
        )
    return pages.of_plan(model, explanation.analysis)
