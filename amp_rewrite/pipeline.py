"""A rewrite, stage by stage: each is a call into the package that it is named for.

load, widen, prepare    the model as it was request, then one in float32, in the form that is decided on
choose                  its colours: analyse, bound, classify, colour, predict, and rescale (`deciders`)
plan, freeze            what is to change, as data, and all that is known of it
edit, annotate          the changes, as decided
write, check            the result, proved and valid before it replaces anything
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

import onnx
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.outputs import ImpreciseOutputs
from amp_rewrite.errors import CertificateError
from amp_rewrite.explaining import frozen_analysis
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model import loading, output_paths, serialization, writing
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.operators import declared_types
from amp_rewrite.policy.options import Options
from amp_rewrite.preparing import preparing
from amp_rewrite.process import startup, worker
from amp_rewrite.process.stopwatch import Progress, Stopwatch, count_of
from amp_rewrite.rescaling.deciders import Request, Transform
from amp_rewrite.rewriting import annotations, argument_checks, decisions, editing, history, result_checks
from amp_rewrite.rewriting import plan as planning
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.rewriting.report import Result

Whole = TypeVar("Whole", onnx.ModelProto, ir.Model, bytes)
"""A model that is passed and returned in memory, as opposed to a path, to which the result is written."""


def analyze(
    source: ModelSource,
    options: Options | None = None,
    *,
    replay: SavedPlan | None = None,
    observed: Seen | None = None,
    imprecise_outputs: ImpreciseOutputs | None = None,
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
    request = Request.checked(source, options, replay, observed, imprecise_outputs, transform, progress)
    with startup.paused(), result_checks.blaming(lambda: serialization.checkable(source)):
        return _decide(request)


def _decide(request: Request) -> Analysis:
    """Run all stages up to the first edit."""
    timed, decider = request.timed, request.decider
    with timed.stage("load"):
        loaded = loading.load(request.source)
    argument_checks.refuse_other(request.observed, loaded.model)
    with timed.stage("widen"):
        before = history.settle(
            request.source, loaded.model, request.options, is_training=request.transform is not None
        )
    request, pinned = replace(request, options=before.options), before.evidence
    if request.transform is not None:
        with timed.stage("insert"):
            pinned = {**pinned, **request.transform(loaded.model)}
    with timed.stage("prepare"):
        prepared = preparing.prepare(loaded.model, decider.form(request.options), pinned)
    choice = decider.choose(prepared, request, pinned)
    with timed.stage("plan"):
        plan = planning.make(choice.facts, choice.priced, request.options, choice.rescaled)
    with timed.stage("freeze"):
        return frozen_analysis.freeze(loaded, before, prepared, choice, plan, decider.replay)


class RewriteArguments(TypedDict, total=False):
    """The keyword arguments of `rewrite`."""

    output: str | os.PathLike[str] | None
    in_place: bool
    force: bool
    replay: SavedPlan | None
    observed: Seen | None
    imprecise_outputs: ImpreciseOutputs | None
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
    source: ModelSource,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    force: bool = False,
    replay: SavedPlan | None = None,
    observed: Seen | None = None,
    imprecise_outputs: ImpreciseOutputs | None = None,
    transform: Transform | None = None,
    on_plan: Callable[[Analysis], None] | None = None,
    progress: Progress | None = None,
) -> Result[Any]:
    """Rewrite a model to mixed precision; the argument is not modified.

    `source` is a path, bytes, a ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, and the
    result is of the same kind. A path is written to `output`, or to `<name>_fp16.onnx` (`_bf16`) beside it;
    over the input itself only with `in_place`, and over a file that amp-rewrite did not create only with
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
        (Counts(half=33, full=17, mixed=0, other=1), 6)
    """
    request = Request.checked(source, options, replay, observed, imprecise_outputs, transform, progress)
    argument_checks.check_output(source, output, in_place=in_place)
    arguments.function("on_plan", on_plan)
    half, beside = request.options.half, request.options.external_data
    target = output_paths.choose(source, output, half, beside, in_place=in_place, force=force)
    is_default = output is None and not in_place
    carry_out = partial(_carry_out, target=target, is_default=is_default, on_plan=on_plan)
    if request.options.check:
        worker.start()
    with startup.paused(), result_checks.blaming(lambda: serialization.checkable(source)):
        analysis = _decide(request)
        try:
            return carry_out(request, analysis)
        except CertificateError as error:
            if replay is not None or analysis.plan.rescaled is None:
                raise
            again = replace(request, options=replace(request.options, rescale=False))
            result = carry_out(again, _decide(again))
            problem = f"nothing is stored times powers of two: {error.problem}"
            return replace(result, report=replace(result.report, warnings=(problem, *result.report.warnings)))


def _carry_out(
    request: Request,
    analysis: Analysis,
    *,
    target: Path | None,
    is_default: bool,
    on_plan: Callable[[Analysis], None] | None,
) -> Result[Any]:
    """Show the caller what is decided, do it, and write the result once it is proved and valid; the target of
    a path `is_default` if the caller named none.
    """
    source, options, timed = request.source, analysis.options, request.timed
    changed = analysis.report().changed or request.transform is not None
    obstacle = frozen_analysis.obstacle(analysis)
    if obstacle is not None and obstacle.already and is_default and not changed:
        target = None  # a model that is half already needs no copy under another name
    if target is not None:
        output_paths.refuse_data(target, analysis.loaded.external)
    is_kept = on_plan is not None and frozen_analysis.show(analysis, on_plan)
    if is_kept:  # by the caller, for whom it stays as it is: another one is edited
        analysis = replace(_decide(request), computed=analysis.computed)
    removed, warnings = _edit(analysis, timed) if analysis.plan else (0, ())
    report = analysis.report()
    proof = (
        result_checks.ResultProof(source, options.op_types, timed, request.transform)
        if options.certify
        else None
    )
    with writing.transaction(target) as staged:
        with timed.stage("write"):
            written = writing.write_result(
                source,
                analysis.loaded,
                target,
                changed=changed,
                external_data=options.external_data,
                proof=proof,
                count=count_of(timed.progress),
            )
        with timed.stage("check"):
            edited = analysis.loaded.model, analysis.graph
            check = partial(result_checks.check, source, written, *edited, analysis.io, options)
            validity = check() if changed else result_checks.Validity()
        model = staged.commit(written.model)
    report = replace(
        report,
        changed=changed,
        obstacle=obstacle,
        form_changes=report.form_changes if changed else (),
        casts_removed=removed,
        warnings=(*analysis.warnings, *warnings, *written.warnings, *validity.warnings, *analysis.predicted),
        broken=validity.broken,
        size_after=written.size,
        certificate=proof.certificate if proof is not None else None,
        seconds=timed.seconds,
    )
    return Result(model, report)


def _edit(analysis: Analysis, timed: Stopwatch) -> tuple[int, tuple[str, ...]]:
    """Carry out the plan, and annotate the result; return the number of Casts removed, and warnings."""
    model, graph, plan, options = analysis.loaded.model, analysis.graph, analysis.plan, analysis.options
    with timed.stage("edit"):
        casts = editing.apply(plan, model, graph.nodes, graph.types)
        nodes = itertools.chain(*graph.nodes.values())
        removed = preparing.bypass_casts(nodes, graph.types, options.half.dtype)
    with timed.stage("annotate"):
        if options.metadata:
            decided = decisions.of(graph, analysis.painting, plan, casts)
            return removed, annotations.update(model, decided, analysis.plan_options, plan.rescaled)
        annotations.remove(model, declared_types.KEY)
        return removed, ()
