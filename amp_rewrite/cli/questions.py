"""What can be asked of an explanation, and the answers: printed, and as plain data."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from amp_rewrite.advice import advice_text
from amp_rewrite.advice.compute_capability import of_this_machine, parse
from amp_rewrite.console import Console, Styled
from amp_rewrite.errors import OptionError
from amp_rewrite.escaping import LONGEST_NAME
from amp_rewrite.explaining import cast_explanations
from amp_rewrite.explaining.sentences import chain, first_step
from amp_rewrite.explanation import DecisionSource, Explanation
from amp_rewrite.model.traversal import graphs
from amp_rewrite.reporting import terminal_explain

Told = dict[str, Any]
"""What was told, as plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One of: a node, a Cast, all units, advice (for a device of a capability); none asks for the causes."""

    node: str | None
    why_cast: str | None
    all_: bool
    advice: bool
    capability: str | None

    def refuse_nonsense(self) -> None:
        """OptionError for two questions at once, and for a device where no advice is asked for."""
        asked = [("NODE", self.node), ("--why-cast", self.why_cast)]
        asked += [("--all", self.all_ or None), ("--advice", self.advice or None)]
        given = [name for name, value in asked if value is not None]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} are two questions", remedy="ask one at a time")
        if self.capability is not None and not self.advice:
            raise OptionError("--device-capability is for --advice", remedy="add --advice, or leave it out")

    def tell(self, console: Console, found: Explanation) -> Told:
        """The answer; OptionError where there is none."""
        if self.advice:
            return _tell_advice(console, found, self.capability)
        if self.all_:
            return _tell_all(console, found)
        if self.why_cast is not None:
            return _tell_cast(console, found, self.why_cast)
        return (
            _tell_node(console, found, self.node) if self.node is not None else _tell_causes(console, found)
        )


def _tell_all(console: Console, found: Explanation) -> Told:
    terminal_explain.print_units(console, found.decisions)
    units = range(len(found.decisions.all))
    return {"units": [first_step(found.decisions, unit).to_json() for unit in units]}


def _tell_causes(console: Console, found: Explanation) -> Told:
    terminal_explain.print_causes(console, found.causes)
    rests = list(found.assumptions)
    untried = any(not cause.suggestion.is_tried for cause in found.causes)
    about_flags = [_UNTRIED[found.source]] if untried else []
    if found.causes:
        for line in (*rests, *about_flags):
            console.print(Styled(line, "dim"))
    causes = [cause.to_json() for cause in found.causes]
    return {"causes": causes, "assumptions": rests, "about_flags": about_flags}


_UNTRIED = {
    DecisionSource.ANALYSIS: "",
    DecisionSource.METADATA: "no flag was tried: that takes the original (amp-rewrite explain ORIGINAL)",
    DecisionSource.PLAN: "no flag was tried: a plan takes none (amp-rewrite explain MODEL tries some)",
}


def _tell_advice(console: Console, found: Explanation, asked: str | None) -> Told:
    capability = parse(asked) if asked is not None else of_this_machine()
    given = found.advice(capability)
    for line in advice_text.lines(given):
        console.print(line)
    return {"advice": given.to_json()}


def _tell_cast(console: Console, found: Explanation, name: str) -> Told:
    stories = cast_explanations.about(found.decisions, name)
    if not stories:
        raise _no_cast(found, name)
    for story in stories:
        terminal_explain.print_cast(console, story)
    return {"casts": [story.to_json() for story in stories]}


def _no_cast(found: Explanation, name: str) -> OptionError:
    if _units_of(found, name):
        return OptionError(f"no Cast of '{name}'", remedy="who makes it and who reads it have one type")
    known = [known for crossing in found.decisions.cast_sites for known in crossing.names]
    return OptionError(f"no Cast of '{name}'", remedy=_near(name, known, "the model has or gets none"))


def _tell_node(console: Console, found: Explanation, name: str) -> Told:
    units = _units_of(found, name)
    if not units and cast_explanations.about(found.decisions, name):
        return _tell_cast(console, found, name)
    if not units:
        raise _no_node(found, name)
    chains = [chain(found.decisions, unit) for unit in units]
    for steps in chains:
        terminal_explain.print_chain(console, steps)
    told = [{"unit": steps[0].unit, "chain": [step.to_json() for step in steps]} for steps in chains]
    return {"node": name, "units": told}


def _units_of(found: Explanation, name: str) -> list[int]:
    """The units of the nodes that are called so, or make a value that is; each node is looked at once."""
    nodes = {decision.node: decision for decision in found.decisions.all}
    named = {node for node, decision in nodes.items() if name in (decision.name, *decision.defs)}
    return [unit for unit, decision in enumerate(found.decisions.all) if decision.node in named]


def _no_node(found: Explanation, name: str) -> OptionError:
    if name in _without_units(found):
        return OptionError(f"'{name}' has no float32 in it", remedy="there is nothing to decide")
    nodes = {decision.node: decision for decision in found.decisions.all}.values()
    known = (known for decision in nodes for known in (decision.name, *decision.defs))
    offer = "leave it out to see what holds nodes back, or say --all"
    return OptionError(f"no node is called '{name}'", remedy=_near(name, list(filter(None, known)), offer))


def _without_units(found: Explanation) -> Iterator[str | None]:
    for graph in graphs(found.counted.model.graph) if found.counted is not None else ():
        for node in graph:
            yield node.name
            yield from (value.name for value in node.outputs)


def _near(name: str, known: list[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name[:LONGEST_NAME], dict.fromkeys(known), n=3)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
