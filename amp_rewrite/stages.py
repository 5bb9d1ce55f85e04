"""What the pipeline does beyond calling a room: on what condition, and with which parts of the analysis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from amp_rewrite import certified
from amp_rewrite.analysis.facts import Facts
from amp_rewrite.bounds import bounding, deciding
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.colouring import classification, paying, rules
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.colouring.paying import Priced
from amp_rewrite.errors import ModelError
from amp_rewrite.explaining import causes, sentences
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.flops import flop_count
from amp_rewrite.model import inlining, loading, serialization, writing
from amp_rewrite.model.loading import Loaded
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.entries import Entry
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.process.stopwatch import Count, Stopwatch
from amp_rewrite.rewriting import annotations, editing, result_checks, widened_model
from amp_rewrite.rewriting import plan as planning
from amp_rewrite.rewriting import tidy as tidying
from amp_rewrite.rewriting.plan import Plan
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.rewriting.report import Obstacle


def widen(source: loading.ModelSource, loaded: Loaded, options: Options) -> None:
    """Has a model with values of the other half type compute them in float32, so that the other stages take
    it as they take any float32 model. What keeps its type as an input or output keeps that.

    Raises ModelError where values of any half type contradict others.
    """
    model = loaded.model
    if not widened_model.has_half(model):
        return
    if not options.keep_functions:
        inlining.inline(model)
    if conflict := element_types.find(model):
        where = Path(source) if isinstance(source, (str, os.PathLike)) else "the given model"
        restore = f"amp-rewrite restore {where}" if isinstance(where, Path) else "amp_rewrite.restore(model)"
        raise ModelError(f"is not a valid model: {conflict}", where=where, remedy=f"mend it first: {restore}")
    others = HALF_TYPES - {options.half.dtype}
    if widened_model.has_half(model, others):
        kept = None if options.io is IOTypes.KEEP else options.keep_io
        widened_model.widen(model, others, kept_io=kept)


def bound(model: ir.Model, facts: Facts, options: Options) -> Proven | None:
    """What is proven of values, where that decides anything; else it is found when somebody asks for it."""
    return bounding.bound_model(model, facts, options) if deciding.needs(facts, options) else None


def plan(facts: Facts, priced: Priced, options: Options) -> Plan:
    """The plan of the painting; none behind a gate, which leaves inputs and outputs as they are too."""
    planned = planning.make(facts, priced.painting, options)  # which refuses names that have no effect
    return Plan(options.half) if priced.gated else planned


def obstacle(analysis: Analysis) -> Obstacle | None:
    """Returns why nothing becomes half, with the cause of the most float32 arithmetic; None where something
    does.
    """
    if any(analysis.painting.halves):
        return None
    model, options = analysis.loaded.model, analysis.options
    flops = flop_count.count(model, analysis.graph.types).flops
    found = causes.find(analysis.decisions(), flops)
    cause = next((cause for cause in found if cause.operators != ("Cast",)), None)
    told = None if cause is None else sentences.of_cause(cause)
    why = "" if told is None else f"{told.origin} ({told.weight}): {told.reason}"
    return Obstacle(why, widened_model.has_half(model, (options.half.dtype,)))


def edit(analysis: Analysis) -> tuple[ir.Node, ...]:
    """Carries out the plan; returns a node for each of its Casts."""
    if not analysis.plan:
        return ()
    analysis.state.is_edited = True
    graph = analysis.graph
    return editing.apply(analysis.plan, analysis.loaded.model, graph.nodes, graph.types)


def tidy(analysis: Analysis) -> int:
    """How many Casts were superfluous, and are gone."""
    graph = analysis.graph
    return tidying.run(graph.root, graph.nodes, graph.types) if analysis.plan else 0


def annotate(analysis: Analysis, placed: Sequence[ir.Node]) -> tuple[str, ...]:
    """Leaves the decisions in a result that changed, if that is asked for; returns what to warn of."""
    if not analysis.plan:
        return ()
    model = analysis.loaded.model
    if not analysis.options.metadata:
        annotations.remove(model)
        return ()
    return annotations.update(model, analysis.graph, analysis.painting, analysis.plan, placed)


def write(
    analysis: Analysis,
    source: loading.ModelSource,
    target: Path | None,
    changed: bool,
    proofs: certified.Proofs,
    timed: Stopwatch,
    count: Count | None,
) -> writing.WrittenResult:
    """Writes the result, proved where that is asked for; a file is proved before it is moved into place."""
    options = analysis.options
    return writing.write_result(
        source,
        analysis.loaded,
        target,
        changed=changed,
        external_data=options.external_data,
        proof=certified.Proof(source, proofs, timed) if options.certify else None,
        count=count,
    )


def check(
    analysis: Analysis, source: loading.ModelSource, made: writing.WrittenResult, changed: bool
) -> result_checks.Validity:
    """What is wrong with a result that changed."""
    if not changed:
        return result_checks.Validity()
    model, types, options = analysis.loaded.model, analysis.graph.types, analysis.options
    keeps_io = options.io is IOTypes.KEEP
    broken = result_checks.broken_io(analysis.io, result_checks.io_types(model, types)) if keeps_io else ()
    if not options.check:
        return result_checks.Validity(broken=broken)
    nodes = element_types.node_count(model) if model.functions else analysis.report().nodes.total
    found = result_checks.validate(made.checkable, lambda: serialization.checkable(source), nodes)
    return replace(found, broken=(*broken, *found.broken))


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
    if replay is not None:
        return paying.settle(facts.graph, painting, options, decided=True)
    beside = paying.beside_pins(facts.graph, facts.findings, facts.freed, painting, options)
    return paying.settle(facts.graph, beside[0], options, beside[1], decided=False)
