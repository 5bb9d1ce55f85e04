"""The stages that decide: for a saved plan, which has decided, it is asked instead."""

from __future__ import annotations

from amp_rewrite.analysis.facts import Facts
from amp_rewrite.colouring import classification, paying, rules
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.colouring.paying import Priced
from amp_rewrite.policy.entries import Entry
from amp_rewrite.policy.options import Options
from amp_rewrite.rewriting.plan_files import SavedPlan


def classify(facts: Facts, options: Options, replay: SavedPlan | None) -> tuple[Entry, ...]:
    """The entries of all units. Raises OptionError for a pin, and PlanError for a plan, that does not fit."""
    if replay is not None:
        return replay.entries(facts.graph)
    return classification.classify(facts.graph, facts.findings, options, facts.freed)


def colour(facts: Facts, entries: tuple[Entry, ...], options: Options, replay: SavedPlan | None) -> Painting:
    """The colours of all units. Raises PlanError for a saved plan that does not fit."""
    if replay is not None:
        return replay.painting(facts.graph, entries)
    return rules.paint(facts.graph, entries, follow=options.follow, level=options.level)


def price(facts: Facts, painting: Painting, options: Options, replay: SavedPlan | None) -> Priced:
    """What stays half as it pays, and the prediction; a saved plan is carried out as it is."""
    return paying.settle(facts.graph, painting, options, decided=replay is not None)
