"""The story in one function: load, analyse, classify, colour, plan, rewrite, tidy, check, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import onnx
import onnx_ir as ir

from amp_rewrite import argument_checks, arguments
from amp_rewrite.analysis.observed import Observed
from amp_rewrite.deciding import Analysis, Given, decide
from amp_rewrite.errors import ModelError
from amp_rewrite.model import loading, output_paths, writing
from amp_rewrite.onnx_types import function_calls, worker
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.process import garbage_collection
from amp_rewrite.process.stopwatch import Progress, Stopwatch
from amp_rewrite.rewriting import annotations, cast_sites, checking, decisions, editing, plan_files, tidy
from amp_rewrite.rewriting.report import Report

M = TypeVar("M", covariant=True)
Whole = TypeVar("Whole", onnx.ModelProto, ir.Model, bytes)
"""A model that is given and returned as a whole, where a path is one that is written."""


@dataclass(frozen=True, slots=True)
class Result(Generic[M]):
    """A rewritten model, of the kind that was given, and the report on it.

    For a path, `model` is the path that was written, as a Path.
    """

    model: M
    report: Report


def analyze(
    source: loading.ModelSource,
    options: Options | None = None,
    *,
    replay: plan_files.SavedPlan | None = None,
    seen: Observed | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Decides for every part of a model, and changes nothing.

    `source` is what `rewrite` takes. A saved plan in `replay` brings its decisions, and what of the options
    it holds (SavedPlan.over). What `observe` saw of the model's values, in `seen`, keeps in float32 what half
    cannot hold of it. `progress` is called with the name of each stage as it begins.
    Raises ModelError, ListError, OptionError and PlanError for what is wrong with what was given.
    """
    argument_checks.check_types(source, options, replay, seen)
    arguments.function("progress", progress)
    with garbage_collection.paused(), checking.blaming(lambda: writing.checkable(source)):
        return _analyze(source, Given(_settled(options, replay), replay, seen or {}), Stopwatch(progress))


@overload
def rewrite(
    source: Whole,
    options: Options | None = None,
    *,
    replay: plan_files.SavedPlan | None = None,
    seen: Observed | None = None,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> Result[Whole]: ...


@overload
def rewrite(
    source: str | os.PathLike[str],
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    replay: plan_files.SavedPlan | None = None,
    seen: Observed | None = None,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> Result[Path]: ...


@overload
def rewrite(
    source: Any,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    replay: plan_files.SavedPlan | None = None,
    seen: Observed | None = None,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> Result[Any]: ...


def rewrite(
    source: loading.ModelSource,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    replay: plan_files.SavedPlan | None = None,
    seen: Observed | None = None,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> Result[Any]:
    """Rewrites a model to mixed precision; what was given stays as it is.

    `source` is a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, and the
    result is of the same kind. A path is written to `output`, or to `<name>_fp16.onnx` (`_bf16`) beside it;
    over the input itself only with `in_place`. `replay` and `seen` decide as in `analyze`;
    `on_plan` gets the analysis when all is decided, before anything changes. `progress` is called with the
    name of each stage as it begins.
    Raises ModelError, ListError, OptionError, PlanError and OutputError, and MissingPackageError for a
    graphsurgeon graph without graphsurgeon.
    """
    argument_checks.check_types(source, options, replay, seen)
    argument_checks.check_output(source, output, in_place=in_place)
    arguments.function("on_plan", on_plan)
    arguments.function("progress", progress)
    options = _settled(options, replay)
    target = output_paths.choose(source, output, options, in_place=in_place)
    clock = Stopwatch(progress)
    if options.check:
        worker.start()
    with garbage_collection.paused(), checking.blaming(lambda: writing.checkable(source)):
        analysis = _analyze(source, Given(options, replay, seen or {}), clock)
        if target is not None and not in_place:
            output_paths.refuse_data(target, analysis.loaded.external)
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
            told = replace(carried_out, warnings=(*carried_out.warnings, *made.warnings))
            model = analysis.loaded.model
            nodes = function_calls.total(model) if model.functions else told.nodes.total
            checked = _check(source, made, told, nodes, options)
    return Result(made.model, replace(checked, size_after=made.size, seconds=clock.seconds))


def _settled(options: Options | None, replay: plan_files.SavedPlan | None) -> Options:
    """What counts: the options that were given, with what a saved plan decides taken from it."""
    asked = options or Options()
    return replay.over(asked) if replay else asked


def _analyze(source: loading.ModelSource, given: Given, clock: Stopwatch) -> Analysis:
    with clock.stage("load"):
        loaded = loading.load(source)
    return decide(loaded, given, clock)


def _carry_out(analysis: Analysis, planned: Report, clock: Stopwatch) -> Report:
    """Edits the model; the report says how many Casts tidying removed, and which inputs and outputs broke."""
    if not analysis.plan:
        return planned
    model, held, types = analysis.loaded.model, analysis.graph.graphs, analysis.graph.types
    before = checking.io_types(model, types)
    analysis.form.is_edited = True
    with clock.stage("rewrite"):
        placed = editing.apply(analysis.plan, model, held, types)
    with clock.stage("tidy"):
        removed = tidy.run(model.graph, held, types)
    with clock.stage("annotate"):
        warnings = (*planned.warnings, *_annotate(analysis, placed))
    carried_out = replace(planned, casts_removed=removed, warnings=warnings)
    if analysis.options.io is IOTypes.HALF:
        return carried_out
    broken = checking.broken_io(before, checking.io_types(model, types))
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
    graph, painting, plan = analysis.graph, analysis.painting, analysis.plan
    if before is None:
        annotations.write_first(model, graph, painting, cast_sites.of(graph, plan.casts, placed))
    else:
        after = decisions.of(graph, painting, plan, placed)
        annotations.write(model, annotations.merged(before, after))
    return warnings


def _check(
    source: loading.ModelSource, made: writing.Made, found: Report, nodes: int, options: Options
) -> Report:
    """The report with onnx's verdict on the result; a model that came as it was has none."""
    if not (found.changed and options.check):
        return found
    verdict = checking.validate(made.checkable, lambda: writing.checkable(source), nodes)
    return replace(
        found,
        warnings=(*found.warnings, *verdict.warnings),
        broken=(*found.broken, *verdict.broken),
    )
