"""The story in one place: `_decide` has the stages up to the first edit, `rewrite` those from there.

    load, widen, prepare, analyse, bound, classify, colour, predict, plan, freeze    nothing is edited before
    edit, tidy, annotate, write, check                                               what was decided is done

Each stage is a call of the room that it is named for, and the condition on which it is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import onnx
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.facts import gather
from amp_rewrite.analysis.observed import Held, Seen
from amp_rewrite.analysis.outputs import Faint
from amp_rewrite.bounds import bounding, deciding
from amp_rewrite.colouring import classification, paying, rules
from amp_rewrite.errors import ModelError
from amp_rewrite.explaining import causes, sentences
from amp_rewrite.explaining.frozen_analysis import Analysis, Decided, freeze
from amp_rewrite.flops import flop_count
from amp_rewrite.model import inlining, loading, output_paths, serialization, writing
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.preparing import preparing
from amp_rewrite.process import startup, worker
from amp_rewrite.process.stopwatch import Progress, Stopwatch, count_of
from amp_rewrite.rewriting import (
    annotations,
    argument_checks,
    editing,
    observed_before,
    plan_files,
    result_checks,
    tidy,
    widened_model,
)
from amp_rewrite.rewriting import plan as planning
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan import Plan
from amp_rewrite.rewriting.report import Obstacle, Report
from amp_rewrite.text import brief

M = TypeVar("M", covariant=True)
Whole = TypeVar("Whole", onnx.ModelProto, ir.Model, bytes)
"""A model that is given and returned as a whole, where a path is one that is written."""


First = Callable[[ir.Model], Held]
"""Changes a loaded model before anything else, and returns what of it stays float32."""


@dataclass(frozen=True, slots=True, repr=False)
class Result(Generic[M]):
    """A rewritten model, of the kind that was given, and the report on it.

    For a path, `model` is the path that was written, as a Path.

    Examples:
        >>> from amp_rewrite import rewrite
        >>> from amp_rewrite.demo import network
        >>> result = rewrite(network())
        >>> type(result.model).__name__, result.report.nodes.half
        ('ModelProto', 44)
    """

    model: M
    report: Report

    def __repr__(self) -> str:
        """A line: what `model` is, and what became of it."""
        held = str(self.model) if isinstance(self.model, Path) else type(self.model).__name__
        return brief(f"Result({held}: {self.report.in_short})")


def analyze(
    source: loading.ModelSource,
    options: Options | None = None,
    *,
    replay: plan_files.SavedPlan | None = None,
    seen: Seen | None = None,
    faint: Faint | None = None,
    first: First | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Decides for every part of a model, and changes nothing.

    `source` is what `rewrite` takes. A saved plan in `replay` brings its decisions, and what of the options
    it holds (SavedPlan.over). What `observe` saw of the model's values, in `seen`, keeps in float32 what half
    cannot hold of it. `faint` are outputs that half stores badly, each with the error that rounding it alone
    makes (`floor` in a verdict); the last products before them stay float32. `first` changes our copy of the
    model when it is loaded, and returns evidence for what it holds in float32, by the names of values.
    `progress` is called with the name of each stage as it begins.
    Raises ModelError, ListError, OptionError and PlanError for what is wrong with what was given.

    Examples:
        >>> from amp_rewrite import analyze
        >>> from amp_rewrite.demo import network
        >>> analyze(network()).report().nodes.full
        6
    """
    argument_checks.check_types(source, options, replay, seen, faint)
    arguments.function("progress", progress)
    with startup.paused(), result_checks.blaming(lambda: serialization.checkable(source)):
        return _decide(
            source, _settled(options, replay), replay, seen or {}, faint or {}, first, Stopwatch(progress)
        )


@overload
def rewrite(
    source: Whole,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    replay: plan_files.SavedPlan | None = None,
    seen: Seen | None = None,
    faint: Faint | None = None,
    first: First | None = None,
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
    seen: Seen | None = None,
    faint: Faint | None = None,
    first: First | None = None,
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
    seen: Seen | None = None,
    faint: Faint | None = None,
    first: First | None = None,
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
    seen: Seen | None = None,
    faint: Faint | None = None,
    first: First | None = None,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> Result[Any]:
    """Rewrites a model to mixed precision; what was given stays as it is.

    `source` is a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, and the
    result is of the same kind. A path is written to `output`, or to `<name>_fp16.onnx` (`_bf16`) beside it;
    over the input itself only with `in_place`. Of a model that is half already, and stays as it is, a copy is
    written to `output` only; else the result is its own path. `replay`, `seen`, `faint` and `first` decide as
    in `analyze`; `on_plan` gets the analysis when all is decided, before anything changes. `progress` is
    called with the name of each stage as it begins.
    Raises ModelError, ListError, OptionError, PlanError and OutputError, MissingPackageError for a
    graphsurgeon graph without graphsurgeon, and with `Options.certify` CertificateError for a result that is
    not proved, which is then not written.

    Examples:
        >>> from amp_rewrite import Options, rewrite
        >>> from amp_rewrite.demo import network
        >>> result = rewrite(network(), Options(half="bfloat16"))
        >>> result.report.nodes, result.report.casts_added
        (NodeCounts(half=33, mixed=0, full=17, other=1), 6)
    """
    argument_checks.check_types(source, options, replay, seen, faint)
    argument_checks.check_output(source, output, in_place=in_place)
    arguments.function("first", first)
    arguments.function("on_plan", on_plan)
    arguments.function("progress", progress)
    options = _settled(options, replay)
    target = output_paths.choose(source, output, options, in_place=in_place)
    timed = Stopwatch(progress)
    if options.check:
        worker.start()
    with startup.paused(), result_checks.blaming(lambda: serialization.checkable(source)):
        analysis = _decide(source, options, replay, seen or {}, faint or {}, first, timed)
        changed = bool(analysis.plan) or first is not None or analysis.loaded.mended
        obstacle = _find_obstacle(analysis)
        if obstacle is not None and obstacle.already and not changed and output is None and not in_place:
            target = None  # what is half already needs no copy of another name
        if target is not None and not in_place:
            output_paths.refuse_data(target, analysis.loaded.external)
        if on_plan is not None:
            on_plan(analysis)
            analysis.decisions()  # made before the edit, for whoever keeps the analysis
        placed: tuple[ir.Node, ...] = ()
        removed, warnings = 0, tuple[str, ...]()
        if analysis.plan:
            model, graph = analysis.loaded.model, analysis.graph
            with timed.stage("edit"):
                analysis.state.is_edited = True
                placed = editing.apply(analysis.plan, model, graph.nodes, graph.types)
            with timed.stage("tidy"):
                removed = tidy.run(graph.root, graph.nodes, graph.types)
            with timed.stage("annotate"):
                warnings = _annotate(analysis, placed)
        proof = result_checks.Proof(source, timed=timed) if options.certify else None
        with writing.transaction(target) as written:
            with timed.stage("write"):
                result = writing.write_result(
                    source,
                    analysis.loaded,
                    target,
                    changed=changed,
                    external_data=options.external_data,
                    proof=proof,
                    count=count_of(progress),
                )
            with timed.stage("check"):
                validity = _check(analysis, source, result) if changed else result_checks.Validity()
            output_model = written.commit(result.model)
    report = replace(
        analysis.report(),
        changed=changed,
        obstacle=obstacle,
        form_changes=analysis.report().form_changes if changed else (),
        casts_removed=removed,
        warnings=(*analysis.warnings, *warnings, *result.warnings, *validity.warnings, *analysis.predicted),
        broken=validity.broken,
        size_after=result.size,
        certificate=proof.certificate if proof is not None else None,
        seconds=timed.seconds,
    )
    return Result(output_model, report)


def _decide(
    source: loading.ModelSource,
    options: Options,
    replay: plan_files.SavedPlan | None,
    seen: Seen,
    faint: Faint,
    first: First | None,
    timed: Stopwatch,
) -> Analysis:
    """All that comes before the first edit of what was decided."""
    with timed.stage("load"):
        loaded = loading.load(source)
    model = loaded.model
    if isinstance(seen, Observed):
        seen.refuse_other(plan_files.fingerprint(model.graph))
    kept = before = observed_before.find(model)
    with timed.stage("widen"):
        if widened_model.has_half(model):
            _widen_other_halves(source, model, options)
    if first is not None:
        with timed.stage("insert"):
            kept = {**before, **first(model)}
    with timed.stage("prepare"):
        prepared = preparing.prepare(model, (replay or options).form, kept)
    with timed.stage("analyse"):
        facts = gather(prepared, options, seen, faint, kept)
    proven = None
    if replay is None:
        with timed.stage("bound"):  # of values that it decides nothing about, when somebody asks for it
            if deciding.needs(facts, options):
                proven = bounding.bound_model(prepared.model, facts, options)
                facts = deciding.decided(facts, prepared.model.graph, proven, options)
    graph = facts.graph
    with timed.stage("classify"):
        entries = (
            replay.entries(graph)
            if replay is not None
            else classification.classify(graph, facts.findings, options, facts.freed)
        )
    with timed.stage("colour"):
        painting = (
            replay.painting(graph, entries)
            if replay is not None
            else rules.paint(graph, entries, follow=options.follow, level=options.level)
        )
    with timed.stage("predict"):
        unpruned: Collection[int] = ()
        if replay is None:
            painting, unpruned = paying.beside_pins(graph, facts.findings, facts.freed, painting, options)
        priced = paying.settle(graph, painting, options, unpruned, decided=replay is not None)
    with timed.stage("plan"):
        plan = planning.make(facts, priced.painting, options)  # which refuses names that have no effect
        if priced.gated:
            plan = Plan(options.half)  # inputs and outputs stay as they are too
    with timed.stage("freeze"):
        decided = Decided(priced, plan, options, replay is not None, proven, seen, before)
        return freeze(loaded, prepared, facts, decided)


def _widen_other_halves(source: loading.ModelSource, model: ir.Model, options: Options) -> None:
    """Has a model with values of the other half type compute them in float32, so that the other stages take
    it as they take any float32 model. What keeps its type as an input or output keeps that.

    Raises ModelError where values of any half type contradict others.
    """
    if not options.keep_functions:
        inlining.inline(model)
    if conflict := element_types.find(model):
        where = Path(source) if isinstance(source, (str, os.PathLike)) else "the given model"
        restore = f"amp-rewrite restore {where}" if isinstance(where, Path) else "amp_rewrite.restore(model)"
        raise ModelError(f"is not a valid model: {conflict}", where=where, remedy=f"mend it first: {restore}")
    others = HALF_TYPES - {options.half.dtype}
    if widened_model.has_half(model, others):
        kept_io = None if options.io is IOTypes.KEEP else options.keep_io
        widened_model.widen(model, others, kept_io=kept_io)


def _find_obstacle(analysis: Analysis) -> Obstacle | None:
    """Returns why nothing becomes half, with the cause of the most float32 arithmetic; None where something
    does.
    """
    if any(analysis.painting.halves):
        return None
    model, options = analysis.loaded.model, analysis.options
    flops = flop_count.count(model, analysis.graph.types).flops
    arithmetic = (cause for cause in causes.find(analysis.decisions(), flops) if cause.operators != ("Cast",))
    sentence = next(map(sentences.of_cause, arithmetic), None)
    why = "" if sentence is None else f"{sentence.origin} ({sentence.weight}): {sentence.reason}"
    return Obstacle(why, widened_model.has_half(model, (options.half.dtype,)))


def _annotate(analysis: Analysis, placed: Sequence[ir.Node]) -> tuple[str, ...]:
    """Leaves the decisions in the result, if that is asked for; returns what to warn of."""
    model = analysis.loaded.model
    if not analysis.options.metadata:
        annotations.remove(model)
        return ()
    return annotations.update(model, analysis.graph, analysis.painting, analysis.plan, placed)


def _check(
    analysis: Analysis, source: loading.ModelSource, result: writing.WrittenResult
) -> result_checks.Validity:
    """Checks a result with onnx's checker, and that its inputs and outputs kept their types."""
    model, types, options = analysis.loaded.model, analysis.graph.types, analysis.options
    keeps_io = options.io is IOTypes.KEEP
    broken = result_checks.broken_io(analysis.io, result_checks.io_types(model, types)) if keeps_io else ()
    if not options.check:
        return result_checks.Validity(broken=broken)
    nodes = element_types.node_count(model) if model.functions else analysis.report().nodes.total
    validity = result_checks.validate(result.checkable, lambda: serialization.checkable(source), nodes)
    return replace(validity, broken=(*broken, *validity.broken))


def _settled(options: Options | None, replay: plan_files.SavedPlan | None) -> Options:
    """What counts: the options that were given, with what a saved plan decides taken from it."""
    asked = options or Options()
    return replay.over(asked) if replay else asked
