"""The story in one place: `_decide` has the stages up to the first edit, `rewrite` those from there.

    load, widen, prepare, analyse, bound, classify, colour, predict, plan, freeze    nothing is edited before
    edit, tidy, annotate, write, check                                               what was decided is done

Each stage is a function of the room that it is named for, or of `stages`; here stands only the order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import onnx
import onnx_ir as ir

from amp_rewrite import argument_checks, arguments, certified, stages
from amp_rewrite.analysis.facts import gather
from amp_rewrite.analysis.observed import Held, Seen
from amp_rewrite.analysis.outputs import Faint
from amp_rewrite.bounds import deciding
from amp_rewrite.escaping import brief
from amp_rewrite.explaining.frozen_analysis import Analysis, Decided, freeze
from amp_rewrite.model import loading, output_paths, serialization, writing
from amp_rewrite.policy.options import Options
from amp_rewrite.preparing import preparing
from amp_rewrite.process import startup, worker
from amp_rewrite.process.stopwatch import Progress, Stopwatch, count_of
from amp_rewrite.rewriting import observed_before, plan_files, result_checks
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.report import Report

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
        obstacle = stages.obstacle(analysis)
        if obstacle is not None and obstacle.already and not changed and output is None and not in_place:
            target = None  # what is half already needs no copy of another name
        if target is not None and not in_place:
            output_paths.refuse_data(target, analysis.loaded.external)
        if on_plan is not None:
            on_plan(analysis)
            analysis.decisions()  # made before the edit, for whoever keeps the analysis
        placed = timed.run("edit", stages.edit, analysis)
        removed = timed.run("tidy", stages.tidy, analysis)
        warnings = timed.run("annotate", stages.annotate, analysis, placed)
        proofs: certified.Proofs = []
        count = count_of(progress)
        with writing.transaction(target) as written:
            made = timed.run("write", stages.write, analysis, source, target, changed, proofs, timed, count)
            checked = timed.run("check", stages.check, analysis, source, made, changed)
            model = written.commit(made.model)
    report = replace(
        analysis.report(),
        changed=changed,
        obstacle=obstacle,
        form_changes=analysis.report().form_changes if changed else (),
        casts_removed=removed,
        warnings=(*analysis.warnings, *warnings, *made.warnings, *checked.warnings, *analysis.predicted),
        broken=checked.broken,
        size_after=made.size,
        certificate=next(iter(proofs), None),
        seconds=timed.seconds,
    )
    return Result(model, report)


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
    loaded = timed.run("load", loading.load, source)
    if isinstance(seen, Observed):
        seen.refuse_other(plan_files.fingerprint(loaded.model.graph))
    before = observed_before.find(loaded.model)
    timed.run("widen", stages.widen, source, loaded, options)
    kept = {**before, **timed.run("insert", first, loaded.model)} if first is not None else before
    prepared = timed.run("prepare", preparing.prepare, loaded.model, (replay or options).form, kept)
    facts = timed.run("analyse", gather, prepared, options, seen, faint, kept)
    proven = timed.run("bound", stages.bound, prepared.model, facts, options) if replay is None else None
    if proven is not None:
        facts = deciding.decided(facts, prepared.model.graph, proven, options)
    entries = timed.run("classify", stages.classify, facts, options, replay)
    painting = timed.run("colour", stages.colour, facts, entries, options, replay)
    priced = timed.run("predict", stages.price, facts, painting, options, replay)
    planned = timed.run("plan", stages.plan, facts, priced, options)
    decided = Decided(priced, planned, options, replay is not None, proven, seen, before)
    return timed.run("freeze", freeze, loaded, prepared, facts, decided)


def _settled(options: Options | None, replay: plan_files.SavedPlan | None) -> Options:
    """What counts: the options that were given, with what a saved plan decides taken from it."""
    asked = options or Options()
    return replay.over(asked) if replay else asked
