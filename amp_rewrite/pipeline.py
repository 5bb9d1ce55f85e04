"""The pipeline of a rewrite: `_decide` runs the stages up to the first edit, `rewrite` the others.

    load, widen, prepare, analyse, bound, classify, colour, predict    decisions, without edits
    rescale, and again from analyse to predict                         values that leave float16, and then fit
    plan, freeze                                                       decisions, without edits
    edit, annotate, write, check                                       edits, as decided

Each stage is a call into the package that it is named for, and the condition for that call.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

import onnx
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.facts import Facts, gather
from amp_rewrite.analysis.observed import Held, Seen
from amp_rewrite.analysis.outputs import Faint
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.bounds import deciding
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.colouring import classification, pruning, rules
from amp_rewrite.colouring.pruning import Priced
from amp_rewrite.costs import flop_count
from amp_rewrite.errors import CertificateError
from amp_rewrite.explaining import causes, sentences
from amp_rewrite.explaining.frozen_analysis import Analysis, Decided, freeze
from amp_rewrite.model import loading, output_paths, serialization, writing
from amp_rewrite.onnx_types import element_types
from amp_rewrite.operators import declared_types
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.preparing import preparing
from amp_rewrite.preparing.form_changes import FormChangeKind
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.process import startup, worker
from amp_rewrite.process.stopwatch import Progress, Stopwatch, count_of
from amp_rewrite.rescaling import demands
from amp_rewrite.rescaling.application import Applied
from amp_rewrite.rescaling.regions import LARGEST, Causes, causes_outside, select
from amp_rewrite.rewriting import (
    annotations,
    argument_checks,
    decisions,
    editing,
    plan_files,
    report,
    result_checks,
    widened_model,
)
from amp_rewrite.rewriting import plan as planning
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan import Plan, Rescaled
from amp_rewrite.rewriting.report import Extent, Obstacle, Report
from amp_rewrite.text import brief

M = TypeVar("M", covariant=True)
Whole = TypeVar("Whole", onnx.ModelProto, ir.Model, bytes)
"""A model that is passed and returned in memory, as opposed to a path, to which the result is written."""


Transform = Callable[[ir.Model], Held]
"""A function that changes a loaded model before all other stages, and returns evidence for float32 values."""


@dataclass(frozen=True, slots=True, repr=False)
class Result(Generic[M]):
    """A rewritten model, of the same kind as the argument, and the report on it.

    For a path, `model` is the path of the result, as a Path.

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
        """Return one line on the kind of `model` and the outcome."""
        model = str(self.model) if isinstance(self.model, Path) else type(self.model).__name__
        return brief(f"Result({model}: {self.report.in_short})")


def analyze(
    source: loading.ModelSource,
    options: Options | None = None,
    *,
    replay: plan_files.SavedPlan | None = None,
    observed: Seen | None = None,
    imprecise_outputs: Faint | None = None,
    transform: Transform | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Decide on every part of a model, without changing it.

    `source` is what `rewrite` takes. A saved plan in `replay` supplies its decisions and the options stored
    with them (SavedPlan.over). Values that `observed`, a result of `observe`, shows out of half's range
    stay float32. `imprecise_outputs` are outputs that half represents badly, each with the error of rounding
    it alone (`floor` in a verdict); the last products before them stay float32. `transform` changes our copy
    of the model after loading, and returns evidence for the values that it fixes to float32, by name.
    `progress` is called with the name of each stage as it begins.
    Raises ModelError, ListError, OptionError and PlanError for invalid arguments.

    Examples:
        >>> from amp_rewrite import analyze
        >>> from amp_rewrite.demo import network
        >>> analyze(network()).report().nodes.full
        6
    """
    argument_checks.check_types(source, options, replay, observed, imprecise_outputs)
    arguments.function("progress", progress)
    with startup.paused(), result_checks.blaming(lambda: serialization.checkable(source)):
        return _decide(
            source,
            _resolve_options(options, replay),
            replay,
            observed or {},
            imprecise_outputs or {},
            transform,
            Stopwatch(progress),
        )


class RewriteArguments(TypedDict, total=False):
    """The keyword arguments of `rewrite`."""

    output: str | os.PathLike[str] | None
    in_place: bool
    force: bool
    replay: plan_files.SavedPlan | None
    observed: Seen | None
    imprecise_outputs: Faint | None
    transform: Transform | None
    on_plan: Callable[[Analysis], None] | None
    progress: Progress | None


@overload
def rewrite(
    source: Whole, options: Options | None = None, **keywords: Unpack[RewriteArguments]
) -> Result[Whole]: ...


@overload
def rewrite(
    source: str | os.PathLike[str], options: Options | None = None, **keywords: Unpack[RewriteArguments]
) -> Result[Path]: ...


@overload
def rewrite(
    source: Any, options: Options | None = None, **keywords: Unpack[RewriteArguments]
) -> Result[Any]: ...


def rewrite(
    source: loading.ModelSource,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    force: bool = False,
    replay: plan_files.SavedPlan | None = None,
    observed: Seen | None = None,
    imprecise_outputs: Faint | None = None,
    transform: Transform | None = None,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> Result[Any]:
    """Rewrite a model to mixed precision; the argument is not modified.

    `source` is a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, and the
    result is of the same kind. A path is written to `output`, or to `<name>_fp16.onnx` (`_bf16`) beside it;
    over the input itself only with `in_place`, and over a file that amp-rewrite did not write only with
    `force`. A model that is half already and stays unchanged is copied to
    `output` only; without one, the result is its own path. `replay`, `observed`, `imprecise_outputs` and
    `transform` decide as in `analyze`; `on_plan` gets the analysis after all decisions, before the first
    edit. `progress` is called with the name of each stage as it begins.
    Raises ModelError, ListError, OptionError, PlanError and OutputError, MissingPackageError for a
    graphsurgeon graph without graphsurgeon, and with `Options.certify` CertificateError for a result that is
    not proved, which is then not written. One with rescaled values is made again without, with a warning.
    With `transform`, the proof is against the model as that changes it.

    Examples:
        >>> from amp_rewrite import Options, rewrite
        >>> from amp_rewrite.demo import network
        >>> result = rewrite(network(), Options(half="bfloat16"))
        >>> result.report.nodes, result.report.casts_added
        (NodeCounts(half=33, mixed=0, full=17, other=1), 6)
    """
    argument_checks.check_types(source, options, replay, observed, imprecise_outputs)
    argument_checks.check_output(source, output, in_place=in_place)
    arguments.function("transform", transform)
    arguments.function("on_plan", on_plan)
    arguments.function("progress", progress)
    options = _resolve_options(options, replay)
    target = output_paths.choose(source, output, options, in_place=in_place, force=force)
    timed = Stopwatch(progress)
    if options.check:
        worker.start()
    with startup.paused(), result_checks.blaming(lambda: serialization.checkable(source)):
        analysis = _decide(source, options, replay, observed or {}, imprecise_outputs or {}, transform, timed)
        kinds = {change.kind for change in analysis.report().form_changes}
        changed = bool(analysis.plan) or transform is not None or analysis.loaded.mended
        changed = changed or FormChangeKind.OPSET_SET in kinds
        obstacle = _find_obstacle(analysis)
        if obstacle is not None and obstacle.already and not changed and output is None and not in_place:
            target = None  # a model that is half already needs no copy under another name
        if target is not None and not in_place:
            output_paths.refuse_data(target, analysis.loaded.external)
        if on_plan is not None:
            on_plan(analysis)
            analysis.decisions()  # computed before the edit, for callers that keep the analysis
        casts: tuple[ir.Node, ...] = ()
        removed, warnings = 0, tuple[str, ...]()
        if analysis.plan:
            model, graph = analysis.loaded.model, analysis.graph
            with timed.stage("edit"):
                analysis.state.is_edited = True
                casts = editing.apply(analysis.plan, model, graph.nodes, graph.types)
                removed = preparing.bypass_casts(
                    itertools.chain(*graph.nodes.values()), graph.types, analysis.options.half.dtype
                )
            with timed.stage("annotate"):
                warnings = _annotate(analysis, casts)
        proof = (
            result_checks.Proof(source, analysis.options.op_types, timed, transform=transform)
            if options.certify
            else None
        )
        try:
            with writing.transaction(target) as staged:
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
                output_model = staged.commit(result.model)
        except CertificateError as error:
            if analysis.plan.rescaled is None or replay is not None:
                raise
            again = rewrite(
                source,
                replace(options, rescale=False),
                output=output,
                in_place=in_place,
                force=force,
                observed=observed,
                imprecise_outputs=imprecise_outputs,
                transform=transform,
                on_plan=on_plan,
                progress=progress,
            )
            problem = f"nothing is stored times powers of two: {error.problem}"
            return replace(again, report=replace(again.report, warnings=(problem, *again.report.warnings)))
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
    observed: Seen,
    imprecise_outputs: Faint,
    transform: Transform | None,
    timed: Stopwatch,
) -> Analysis:
    """Run all stages up to the first edit."""
    with timed.stage("load"):
        loaded = loading.load(source)
    model = loaded.model
    if isinstance(observed, Observed):
        observed.refuse_other(plan_files.fingerprint(model.graph))
    options = replace(options, op_types=argument_checks.check_op_types(model, options))
    annotations.declare_types(model, options.op_types)
    pins = before = annotations.read_evidence_of_runs(model)
    warnings = [] if transform is not None else annotations.purpose_warnings(model)
    with timed.stage("widen"):
        if widened_model.has_half(model):
            warnings += widened_model.widen_others(source, model, options)
    loaded = replace(loaded, warnings=(*loaded.warnings, *warnings))
    if transform is not None:
        with timed.stage("insert"):
            pins = {**before, **transform(model)}
    with timed.stage("prepare"):
        prepared = preparing.prepare(model, (replay or options).form, pins)
    is_data = isinstance(observed, Observed) and not observed.is_synthetic
    choose = partial(_choose, prepared, options, replay, imprecise_outputs, pins, is_data, timed)
    if replay is not None and replay.rescaled is not None:
        with timed.stage("rescale"):
            facts = gather(prepared, options, {}, {}, pins)
            demands.replay(prepared, facts, replay.rescaled, replay.where)
    choice = choose(observed)
    if replay is None and observed and options.rescales:
        choice = _rescale(prepared, choice, choose, options, timed)
    facts, priced = choice.facts, choice.priced
    with timed.stage("plan"):
        plan = planning.make(facts, priced.painting, options)  # refuses names that have no effect
        if priced.gated:
            plan = Plan(options.half)  # inputs and outputs stay as they are too
        plan = replace(plan, rescaled=replay.rescaled if replay is not None else choice.rescaled)
    with timed.stage("freeze"):
        decided = Decided(priced, plan, options, replay, choice.proven, choice.observed, before)
        return freeze(loaded, prepared, facts, decided)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A priced painting, with the observations, facts and bounds behind it, and what was rescaled for it."""

    observed: Seen
    facts: Facts
    proven: Proven | None
    priced: Priced
    rescaled: Rescaled | None = None


def _choose(
    prepared: Prepared,
    options: Options,
    replay: plan_files.SavedPlan | None,
    imprecise_outputs: Faint,
    pins: Held,
    is_data: bool,
    timed: Stopwatch,
    observed: Seen,
    graph: UnitGraph | None = None,
) -> _Choice:
    """Choose the colours of a prepared model; `graph` as in `gather`, `is_data` for samples of the user."""
    with timed.stage("analyse"):
        facts = gather(prepared, options, observed, imprecise_outputs, pins, graph)
        facts = deciding.freed_by_samples(facts, observed, options) if is_data else facts
    proven = None
    if replay is None:
        with timed.stage("bound"):  # bounds that no decision needs are computed on demand
            if deciding.needs(facts, options):
                proven = Proven(prepared.model, facts, options)
                facts = deciding.decided(facts, proven, options)
    graph = facts.graph
    if replay is not None:
        with timed.stage("colour"):
            painting = replay.painting(graph)
    else:
        with timed.stage("classify"):
            entries = classification.classify(graph, facts.findings, options, facts.freed)
        with timed.stage("colour"):
            painting = rules.paint(graph, entries, follow=options.follows, level=options.level)
    with timed.stage("predict"):
        unpruned: Collection[int] = ()
        if replay is None:
            painting, unpruned = pruning.beside_pins(graph, facts.findings, facts.freed, painting, options)
        priced = pruning.settle(graph, painting, options, unpruned, decided=replay is not None)
    return _Choice(observed, facts, proven, priced)


def _rescale(
    prepared: Prepared,
    choice: _Choice,
    choose: Callable[[Seen, UnitGraph | None], _Choice],
    options: Options,
    timed: Stopwatch,
) -> _Choice:
    """Return the choice for the model with values rescaled, in place, as far as that pays."""
    facts, painting = choice.facts, choice.priced.painting
    with timed.stage("rescale"):
        findings = demands.without_range(facts.findings)
        is_faint = any(each.is_faint(options.half) for each in choice.observed.values())
        if len(findings) == len(facts.findings) and not is_faint:
            return choice
        entries = classification.classify(facts.graph, findings, options, facts.freed)
        blind = rules.paint(facts.graph, entries, follow=options.follows, level=options.level)
        demand = demands.find(facts, blind, painting, choice.observed).without(options.unscaled)

    def rescale(unscaled: Collection[str] = ()) -> tuple[_Choice, Applied | None]:
        with timed.stage("rescale"):
            applied = demands.meet(prepared, facts, demand.without(unscaled))
        if applied is None:
            return choice, None
        again = choose(applied.observations(choice.observed), applied.units(facts.graph))
        rescaled = replace(applied.rescaled, freed=_count_freed(choice, again))
        return replace(again, rescaled=rescaled), applied

    again, applied = rescale()
    if applied is None or _pays(again.priced, choice.priced, is_needed=applied.is_needed):
        return again
    applied.revert()
    is_tried = len(facts.graph.units) <= LARGEST
    regions, best = applied.rescaled.regions if is_tried else (), choice

    def pay(selected: Sequence[Causes]) -> bool:
        nonlocal best
        candidate, trial = rescale(causes_outside(selected, regions))
        if trial is None:
            return False
        trial.revert()
        if pays := _pays(candidate.priced, best.priced, is_needed=False):
            best = candidate
        return pays

    selected = select(regions, pay)
    return rescale(causes_outside(selected, regions))[0] if selected else choice


def _pays(after: Priced, before: Priced, *, is_needed: bool) -> bool:
    """Return whether a rescaled model is predicted to be faster, or as fast where rescaling `is_needed`;
    without a prediction, whether it has half units.
    """
    if after.gated or not any(after.painting.halves):
        return False
    if after.prediction is None:
        return True
    time = after.prediction.float32 if before.prediction is None else before.prediction.result
    seconds = after.prediction.result.seconds
    return seconds < time.seconds or (is_needed and seconds == time.seconds)


def _count_freed(before: _Choice, after: _Choice) -> int:
    """Return the number of nodes that are float32 in the one choice, and half in the other."""
    was, now = (report.extents(each.facts.graph, each.priced.painting) for each in (before, after))
    return sum(extent is Extent.ALL for node, extent in now.items() if was.get(node) is Extent.NONE)


def _find_obstacle(analysis: Analysis) -> Obstacle | None:
    """Return the reason why nothing becomes half, the cause of the most float32 arithmetic; None where
    something does, or weights alone.
    """
    if any(analysis.painting.halves) or analysis.report().stored_half:
        return None
    model, options = analysis.loaded.model, analysis.options
    flops = flop_count.count(model, analysis.graph.types).flops
    arithmetic = (cause for cause in causes.find(analysis.decisions(), flops) if cause.operators != ("Cast",))
    sentence = next(map(sentences.of_cause, arithmetic), None)
    why = "" if sentence is None else f"{sentence.origin} ({sentence.weight}): {sentence.reason}"
    return Obstacle(why, widened_model.has_half(model, (options.half.dtype,)))


def _annotate(analysis: Analysis, casts: Sequence[ir.Node]) -> tuple[str, ...]:
    """Write the decisions into the result, if requested; return the warnings."""
    model = analysis.loaded.model
    if not analysis.options.metadata:
        annotations.remove(model, declared_types.KEY)
        return ()
    decided = decisions.of(analysis.graph, analysis.painting, analysis.plan, casts)
    return annotations.update(model, decided, analysis.plan_options, analysis.plan.rescaled)


def _check(
    analysis: Analysis, source: loading.ModelSource, result: writing.WrittenResult
) -> result_checks.Validity:
    """Check a result with onnx's checker, and that its inputs and outputs kept their types."""
    model, types, options = analysis.loaded.model, analysis.graph.types, analysis.options
    keeps_io = options.io is IOTypes.KEEP
    broken = result_checks.broken_io(analysis.io, result_checks.io_types(model, types)) if keeps_io else ()
    if not options.check:
        return result_checks.Validity(broken=broken)
    nodes = element_types.node_count(model) if model.functions else analysis.report().nodes.total
    validity = result_checks.validate(result.checkable, lambda: serialization.checkable(source), nodes)
    return replace(validity, broken=(*broken, *validity.broken))


def _resolve_options(options: Options | None, replay: plan_files.SavedPlan | None) -> Options:
    """Return the effective options: the given ones, overridden by those of a saved plan."""
    options_or_default = options or Options()
    return replay.over(options_or_default) if replay else options_or_default
