"""The story in one function: load, analyse, classify, colour, plan, rewrite, tidy, check, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from amp_rewrite import (
    annotations,
    apart,
    attribute_types,
    checking,
    collector,
    colours,
    decisions,
    editing,
    element_types,
    inlining,
    integers,
    kinds,
    model_io,
    observed,
    output_paths,
    plan,
    plan_files,
    quantised,
    quirks,
    ranges,
    shape_inference,
    stored,
    tidy,
    unfusing,
    units,
    writing,
)
from amp_rewrite.errors import ModelError
from amp_rewrite.findings import BY_OBSERVATION, Finding
from amp_rewrite.half import Half
from amp_rewrite.observed import Observed
from amp_rewrite.options import Borders, Options
from amp_rewrite.reporting import causes, remedies, report
from amp_rewrite.reporting.causes import RootCause
from amp_rewrite.reporting.report import Report
from amp_rewrite.stopwatch import Progress, Stopwatch


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is known and decided of a model, before anything changes."""

    loaded: model_io.Loaded
    graph: units.UnitGraph
    painting: colours.Painting
    plan: plan.Plan
    options: Options
    warnings: tuple[str, ...]

    def report(self) -> Report:
        """What is known of the rewrite before it happens."""
        nodes = report.count_nodes(self.loaded.model, self.graph, self.painting)
        found = report.of_plan(self.plan, nodes)
        seen = sum(entry.source == BY_OBSERVATION for entry in self.painting.entries)
        return replace(found, observed=seen, size_before=self.loaded.size, warnings=self.warnings)

    def decisions(self) -> decisions.Decisions:
        """What is decided for every unit, and why."""
        return decisions.of(self.graph, self.painting, self.plan)

    def causes(self, flops: causes.Flops | None = None) -> tuple[RootCause, ...]:
        """What holds nodes back in float32, with what would help: the most arithmetic first.

        `flops` are the floating-point operations of the nodes (arithmetic.work); without them the number of
        nodes counts. Every flag that is named was tried.
        """
        return tuple(
            replace(cause, remedy=remedies.tried(cause, self.graph, self.painting, self.options))
            for cause in causes.find(self.decisions(), flops)
        )


@dataclass(frozen=True, slots=True)
class Result:
    """A rewritten model, of the kind that was given, and the report on it.

    For a path, `model` is the path that was written.
    """

    model: Any
    report: Report


def analyze(
    source: model_io.Source,
    options: Options | None = None,
    *,
    replay: plan_files.SavedPlan | None = None,
    seen: Observed | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Decides for every part of a model, and changes nothing.

    A saved plan in `replay` brings its decisions, and what of the options it holds (SavedPlan.over).
    What `observe` saw of the model's values, in `seen`, keeps in float32 what half cannot hold of it.
    Raises ModelError, ListError, OptionError and PlanError for what is wrong with what was given.
    """
    with collector.paused(), checking.blaming(lambda: writing.checkable(source)):
        return _analyze(source, _Given(_settled(options, replay), replay, seen or {}), Stopwatch(progress))


def rewrite(
    source: model_io.Source,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    replay: plan_files.SavedPlan | None = None,
    seen: Observed | None = None,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Rewrites a model to mixed precision; what was given stays as it is.

    `source` is a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, and the
    result is of the same kind. A path is written to `output`, or to `<name>_fp16.onnx` (`_bf16`) beside it;
    over the input itself only with `in_place`. `replay` and `seen` decide as in `analyze`;
    `on_plan` gets the analysis when all is decided, before anything changes.
    Raises ModelError, ListError, OptionError, PlanError and OutputError.
    """
    options = _settled(options, replay)
    target = output_paths.choose(source, output, options, in_place=in_place)
    clock = Stopwatch(progress)
    if options.check:
        apart.start()
    with collector.paused(), checking.blaming(lambda: writing.checkable(source)):
        analysis = _analyze(source, _Given(options, replay, seen or {}), clock)
        planned = analysis.report()
        if on_plan is not None:
            on_plan(analysis)
        carried_out = _carry_out(analysis, planned, clock)
        with clock.stage("write"):
            made = writing.hand_back(
                source,
                analysis.loaded,
                target,
                changed=planned.changed,
                external_data=options.external_data,
            )
        with clock.stage("check"):
            checked = _check(source, made, carried_out, options)
    return Result(made.model, replace(checked, size_after=made.size, seconds=clock.seconds))


@dataclass(frozen=True, slots=True)
class _Given:
    """All that has a say in a decision, besides the model itself."""

    options: Options
    replay: plan_files.SavedPlan | None
    seen: Observed


def _settled(options: Options | None, replay: plan_files.SavedPlan | None) -> Options:
    """What counts: the options that were given, with what a saved plan decides taken from it."""
    asked = options or Options()
    return replay.over(asked) if replay else asked


def _analyze(source: model_io.Source, given: _Given, clock: Stopwatch) -> Analysis:
    with clock.stage("load"):
        loaded = model_io.load(source)
    return _decide(loaded, given, clock)


def _decide(loaded: model_io.Loaded, given: _Given, clock: Stopwatch) -> Analysis:
    options, replay = given.options, given.replay
    half = options.half
    with clock.stage("analyse"):
        warning = _settle_functions(loaded.model, options)
        unfusing.split(loaded.model, options.target, half)
        types = shape_inference.types(loaded.model)
        tidy.bypass(loaded.model, types)
        graph = units.build(loaded.model, types, options.target, half)
        held = stored.find(loaded.model)
        found = ranges.check(graph, held, half)
    with clock.stage("colour"):
        painting = replay.painting(graph, loaded.model) if replay else _paint(graph, given, found)
    with clock.stage("plan"):
        plan.check_names(graph, options.keep_io, options.borders)
        old = _old_opset(loaded.model.graph, half)
        borders = Borders.KEEP if old else options.borders
        made = plan.make(graph, painting, held, found, half, borders=borders, keep_io=options.keep_io)
    warnings = (*loaded.warnings, *filter(None, (warning, old)))
    return Analysis(loaded, graph, painting, made, options, warnings)


def _settle_functions(model: ir.Model, options: Options) -> str | None:
    """Inlines the functions of a model, or says that they are kept."""
    if not options.keep_functions:
        return inlining.inline(model)
    kept = len(model.functions)
    return f"{kept} model-local {'function' if kept == 1 else 'functions'} kept, in float32" if kept else None


def _paint(graph: units.UnitGraph, given: _Given, found: ranges.Ranges) -> colours.Painting:
    options, findings = given.options, _findings(graph, given, found)
    lists = options.operator_lists()
    entries = kinds.classify(
        graph, lists, options.half, findings, options.pins, options.level, options.target
    )
    return colours.paint(graph, entries, follow=options.follow, level=options.level)


def _findings(graph: units.UnitGraph, given: _Given, found: ranges.Ranges) -> Mapping[int, Finding]:
    """What the analyses found; the last one counts: what fails in a runtime cannot even be forced."""
    options = given.options
    return {
        **observed.check(graph, given.seen, found, options.half),
        **quantised.check(graph, fused=options.target.has_faults),
        **integers.check(graph, found.fits, options.half),
        **found.findings,
        **(quirks.check(graph) if options.target.has_faults else {}),
        **_uncast(graph, options.half),
    }


def _uncast(graph: units.UnitGraph, half: Half) -> Mapping[int, Finding]:
    """All units of a model whose opset has no Cast to half: operators of other domains might take it."""
    old = _old_opset(graph.root, half)
    return {unit.index: Finding(old, always=True) for unit in graph.units} if old else {}


def _carry_out(analysis: Analysis, planned: Report, clock: Stopwatch) -> Report:
    """Edits the model; the report says how many Casts tidying removed, and what broke at the borders."""
    if not analysis.plan:
        return planned
    model, types = analysis.loaded.model, analysis.graph.types
    before = checking.borders(model, types)
    with clock.stage("rewrite"):
        placed = editing.apply(analysis.plan, model, types)
    with clock.stage("tidy"):
        removed = tidy.run(model, types)
    with clock.stage("annotate"):
        warnings = (*planned.warnings, *_annotate(analysis, placed))
    carried_out = replace(planned, casts_removed=removed, warnings=warnings)
    if analysis.options.borders is Borders.HALF:
        return carried_out
    broken = checking.broken_borders(before, checking.borders(model, types))
    return replace(carried_out, broken=broken)


def _annotate(analysis: Analysis, placed: Sequence[ir.Node]) -> tuple[str, ...]:
    """Leaves the decisions in the result, if that is asked for; returns what there is to warn of."""
    model = analysis.loaded.model
    if not analysis.options.metadata:
        annotations.remove(model)
        return ()
    warnings: tuple[str, ...] = ()
    try:
        before = annotations.read(model)
    except ModelError as error:
        before, warnings = None, (f"what is left of an earlier rewrite is dropped: {error.problem}",)
    annotations.write(model, annotations.merged(before, analysis.decisions().placed(placed)))
    return warnings


def _check(source: model_io.Source, made: writing.Made, found: Report, options: Options) -> Report:
    """The report with onnx's verdict on the result; a model that came as it was has none."""
    if not (found.changed and options.check):
        return found
    verdict = checking.validate(made.checkable, lambda: writing.checkable(source), found.nodes.total)
    return replace(
        found,
        warnings=(*found.warnings, *verdict.warnings),
        broken=(*found.broken, *verdict.broken),
    )


def _old_opset(root: ir.Graph, half: Half) -> str | None:
    version = element_types.newest(root.opset_imports)
    since = _BFLOAT16_SINCE if half.name == "bfloat16" else attribute_types.FIRST_TYPED_CAST
    if version >= since:
        return None
    return f"{half.name} needs opset {since}, and the model has {version}: nothing can change"


_BFLOAT16_SINCE = 13
"""The first opset whose operators take bfloat16 (Cast, MatMul, Add and their like, ONNX 1.8)."""
