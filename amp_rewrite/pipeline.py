"""The story in one function: load, analyse, classify, colour, plan, rewrite, tidy, check, report."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from amp_rewrite import (
    checking,
    colours,
    editing,
    element_types,
    inlining,
    integers,
    kinds,
    model_io,
    plan,
    plan_files,
    quantised,
    quirks,
    ranges,
    shape_inference,
    stored,
    tidy,
    units,
    writing,
)
from amp_rewrite.errors import OptionError, OutputError
from amp_rewrite.findings import Finding
from amp_rewrite.half import Half
from amp_rewrite.options import Borders, Options
from amp_rewrite.reporting import report
from amp_rewrite.reporting.report import Report
from amp_rewrite.stopwatch import Progress, Stopwatch


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is known and decided of a model, before anything changes."""

    loaded: model_io.Loaded
    graph: units.UnitGraph
    painting: colours.Painting
    plan: plan.Plan
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A rewritten model, of the kind that was given, and the report on it.

    For a path, `model` is the path that was written, or None when nothing was to be written.
    """

    model: Any
    report: Report


def analyze(
    source: model_io.Source,
    options: Options | None = None,
    *,
    replay: plan_files.SavedPlan | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Decides for every part of a model, and changes nothing; `replay` takes the decisions of a saved plan.

    Raises ModelError, ListError, OptionError and PlanError for what is wrong with what was given.
    """
    with _without_collector(), checking.blaming(lambda: writing.checkable(source)):
        clock = Stopwatch(progress)
        with clock.stage("load"):
            loaded = model_io.load(source)
        return _decide(loaded, options or Options(), replay, clock)


def rewrite(
    source: model_io.Source,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    replay: plan_files.SavedPlan | None = None,
    progress: Progress | None = None,
) -> Result:
    """Rewrites a model to mixed precision; what was given stays as it is.

    `source` is a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, and the
    result is of the same kind. A path is written to `output`, or to `<name>_fp16.onnx` (`_bf16`) beside it;
    over the input itself only with `in_place`.
    Raises ModelError, ListError, OptionError, PlanError and OutputError.
    """
    options = options or Options()
    target = _target(source, output, replay.half if replay else options.half, in_place)
    clock = Stopwatch(progress)
    with _without_collector(), checking.blaming(lambda: writing.checkable(source)):
        with clock.stage("load"):
            loaded = model_io.load(source)
        analysis = _decide(loaded, options, replay, clock)
        nodes = report.count_nodes(loaded.model, analysis.graph, analysis.painting)
        removed, broken = _carry_out(analysis, options, clock)
        with clock.stage("write"):
            made = writing.hand_back(source, loaded, target, changed=bool(analysis.plan))
        with clock.stage("check"):
            verdict = _check(source, made, options, nodes.total if analysis.plan else 0)
        found = report.of_plan(analysis.plan, nodes)
    return Result(
        made.model,
        replace(
            found,
            casts_removed=removed,
            size_before=loaded.size,
            size_after=made.size,
            warnings=(*analysis.warnings, *verdict.warnings),
            broken=(*broken, *verdict.broken),
            seconds=clock.seconds,
        ),
    )


def _decide(
    loaded: model_io.Loaded,
    options: Options,
    replay: plan_files.SavedPlan | None,
    clock: Stopwatch,
) -> Analysis:
    half = replay.half if replay else options.half
    with clock.stage("analyse"):
        warning = None if options.keep_functions else inlining.inline(loaded.model)
        graph = units.build(loaded.model, _types(loaded.model), options.target)
        held = stored.find(loaded.model)
        found = ranges.check(graph, held, half)
    with clock.stage("colour"):
        if replay:
            painting = replay.painting(graph, loaded.model)
        else:
            findings = {  # the last one counts: what fails in a runtime cannot even be forced
                **quantised.check(graph),
                **integers.check(graph, found.fits, half),
                **found.findings,
                **(quirks.check(graph) if options.target.has_faults else {}),
            }
            painting = _paint(graph, options, findings)
    with clock.stage("plan"):
        plan.check_names(graph, options.keep_io)
        made = plan.make(graph, painting, held, found, half, borders=options.borders, keep_io=options.keep_io)
    warnings = tuple(filter(None, (warning, _old_opset(loaded.model, half))))
    return Analysis(loaded, graph, painting, made, warnings)


def _types(model: ir.Model) -> element_types.Types:
    types = element_types.infer(model)
    if element_types.complete(model, types):
        return types
    return element_types.infer(model, shape_inference.types_by_name(model))


def _paint(graph: units.UnitGraph, options: Options, findings: Mapping[int, Finding]) -> colours.Painting:
    lists = options.operator_lists()
    entries = kinds.classify(
        graph, lists, options.half, findings, options.pins, options.level, options.target
    )
    return colours.paint(graph, entries, follow=options.follow, level=options.level)


def _carry_out(analysis: Analysis, options: Options, clock: Stopwatch) -> tuple[int, tuple[str, ...]]:
    """Edits the model; returns how many Casts tidying removed, and what broke at the borders."""
    model, types = analysis.loaded.model, analysis.graph.types
    before = checking.borders(model, types)
    if not analysis.plan:
        return 0, ()
    with clock.stage("rewrite"):
        editing.apply(analysis.plan, model, types)
    with clock.stage("tidy"):
        removed = tidy.run(model, types)
    if options.borders is Borders.HALF:
        return removed, ()
    return removed, checking.broken_borders(before, checking.borders(model, types))


def _check(source: model_io.Source, made: writing.Made, options: Options, nodes: int) -> checking.Verdict:
    """onnx's verdict on a result of so many nodes; a model that came as it was has none."""
    if not (nodes and options.check):
        return checking.Verdict()
    return checking.validate(made.checkable, lambda: writing.checkable(source), nodes)


def _old_opset(model: ir.Model, half: Half) -> str | None:
    version = element_types.versions(model.graph.opset_imports)("")
    if half.name != "bfloat16" or version >= _BFLOAT16_SINCE:
        return None
    return f"bfloat16 needs opset {_BFLOAT16_SINCE}, and the model has {version}: nothing can change"


_BFLOAT16_SINCE = 13
"""The first opset whose operators take bfloat16 (Cast, MatMul, Add and their like, ONNX 1.8)."""


def _target(
    source: model_io.Source,
    output: str | os.PathLike[str] | None,
    half: Half,
    in_place: bool,
) -> Path | None:
    if not isinstance(source, (str, os.PathLike)):
        if output is not None:
            raise OptionError("output is for a path; other models are returned")
        return None
    given = Path(source)
    if in_place and output is not None:
        raise OptionError("output and in_place name two places", remedy="leave one of them out")
    if in_place:
        return given
    target = Path(output) if output is not None else default_output(given, half)
    if target.is_dir():
        raise OutputError("is a folder", where=target, remedy="name a file in it with -o")
    if target.exists() and given.exists() and target.samefile(given):
        raise OptionError(f"{target} is the input itself", remedy="choose another place, or say --in-place")
    return target


def default_output(path: Path, half: Half) -> Path:
    """Where the result goes when nothing is said: beside the input, under a name of its own."""
    return path.with_name(f"{path.stem}_{_SHORT[half.name]}.onnx")


_SHORT = {"float16": "fp16", "bfloat16": "bf16"}


@contextlib.contextmanager
def _without_collector() -> Generator[None]:
    """Pauses the cycle collector, which would walk a large graph again and again as it grows.

    A pass over 100,000 nodes takes twice as long with it. What was made meanwhile counts as old
    afterwards, so that the collector does not walk all of it at once.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.freeze()
            gc.unfreeze()
            gc.enable()
