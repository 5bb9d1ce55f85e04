"""Decides for every part of a loaded model: analyse, classify, colour, plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis import integer_values, observed, quantised, ranges, runtime_bugs, units
from amp_rewrite.analysis.findings import BY_OBSERVATION, Finding
from amp_rewrite.analysis.observed import Observed
from amp_rewrite.colouring import classification, matching, rules
from amp_rewrite.colouring.matching import Matched
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining import causes, suggestions
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.model import constants, fused_conv_decomposition, inlining, loading, traversal
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import attribute_types, element_types, shape_inference
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.process.stopwatch import Stopwatch
from amp_rewrite.rewriting import decisions, plan, plan_files, report, tidy
from amp_rewrite.rewriting.report import Report


@dataclass(slots=True)
class Form:
    """Whether a model still has the form in which it was analysed: `rewrite` edits it in place."""

    is_edited: bool = False


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is known and decided of a model, before anything changes.

    `findings` are what holds single units in float32; None where a saved plan decided all. `loaded`, `graph`
    and `plan` refer to the model itself, which is another after `rewrite`.
    """

    loaded: loading.Loaded
    graph: units.UnitGraph
    painting: rules.Painting
    plan: plan.Plan
    options: Options
    findings: Mapping[int, Finding] | None
    warnings: tuple[str, ...]
    matched: tuple[Matched, ...]
    form: Form
    _report: Report
    _decisions: decisions.Decisions

    @property
    def replayed(self) -> bool:
        """Whether a saved plan decided."""
        return self.findings is None

    def report(self) -> Report:
        """What is known of the rewrite before it happens."""
        return self._report

    def decisions(self) -> decisions.Decisions:
        """What is decided for every unit, and why."""
        return self._decisions

    def causes(self, flops: causes.Flops | None = None) -> tuple[RootCause, ...]:
        """What holds nodes back in float32, with what would help: the most arithmetic first.

        `flops` are the floating-point operations of the nodes (flops.flop_count); without them the number of
        nodes counts. Every flag that is named was tried; with a saved plan, which takes none, none is named.
        Raises OptionError when the model has been rewritten since.
        """
        self._refuse_edited()
        found = causes.find(self.decisions(), flops)
        if self.replayed:
            return tuple(suggestions.untried(found))
        again = suggestions.Subject(self.graph, self.painting, self.options, self.painted, flops or {})
        return tuple(suggestions.tried(found, again))

    def painted(self, options: Options) -> rules.Painting:
        """How the same model would be coloured with other lists, pins, level and `follow`.

        Raises OptionError for a pin that matches no node, or that asks for what no schema allows, and when
        the model has been rewritten since.
        """
        self._refuse_edited()
        return _paint(self.graph, options, self.findings or {})

    def _refuse_edited(self) -> None:
        if self.form.is_edited:
            raise OptionError(
                "the model was rewritten after this analysis, which cannot try anything on it any more",
                remedy="ask for them in on_plan, or analyze the original",
            )


@dataclass(frozen=True, slots=True)
class Given:
    """All that has a say in a decision, besides the model itself."""

    options: Options
    replay: plan_files.SavedPlan | None
    seen: Observed


def decide(loaded: loading.Loaded, given: Given, clock: Stopwatch) -> Analysis:
    """Analyses, colours and plans a model that was loaded; of the model itself, only its form may change."""
    options, replay = given.options, given.replay
    half = options.half
    with clock.stage("analyse"):
        observed.refuse_foreign(loaded.model.graph, given.seen)
        warning = _settle_functions(loaded.model, options)
        operators = traversal.operators(traversal.graphs(loaded.model.graph))
        if "FusedConv" in operators:
            fused_conv_decomposition.decompose(loaded.model, options.target, half)
        types = shape_inference.types(loaded.model)
        if "Cast" in operators:
            tidy.bypass(loaded.model, types)
        graph = units.build(loaded.model, types, options.target, half)
        held = constants.find(loaded.model)
        found = ranges.check(graph, held, half)
    with clock.stage("colour"):
        findings = None if replay else _findings(graph, given, found)
        again = replay.painting(graph, loaded.model) if replay else None
        painting = again or _paint(graph, options, findings or {})
    with clock.stage("plan"):
        plan.check_names(graph, options.keep_io, options.io)
        old = _old_opset(loaded.model.graph, half)
        io = IOTypes.KEEP if old else options.io
        made = plan.make(graph, painting, held, found, half, io=io, keep_io=options.keep_io)
        warnings = (*loaded.warnings, *filter(None, (warning, old)))
        matched = () if replay else matching.find(graph, options.operator_lists(), options.pins)
        planned = _report(loaded, graph, painting, made, warnings, matched)
        decided = decisions.of(graph, painting, made)
    return Analysis(
        loaded, graph, painting, made, options, findings, warnings, matched, Form(), planned, decided
    )


def _report(
    loaded: loading.Loaded,
    graph: units.UnitGraph,
    painting: rules.Painting,
    made: plan.Plan,
    warnings: tuple[str, ...],
    matched: tuple[Matched, ...],
) -> Report:
    found = report.of_plan(made, report.count_nodes(loaded.model, graph, painting))
    seen = sum(entry.source == BY_OBSERVATION for entry in painting.entries)
    return replace(found, observed=seen, size_before=loaded.size, matched=matched, warnings=warnings)


def _settle_functions(model: ir.Model, options: Options) -> str | None:
    """Inlines the functions of a model, or says that they are kept."""
    if not options.keep_functions:
        return inlining.inline(model)
    kept = len(model.functions)
    return f"{kept} model-local {'function' if kept == 1 else 'functions'} kept, in float32" if kept else None


def _paint(graph: units.UnitGraph, options: Options, findings: Mapping[int, Finding]) -> rules.Painting:
    lists = options.operator_lists()
    entries = classification.classify(
        graph, lists, options.half, findings, options.pins, options.level, options.target
    )
    return rules.paint(graph, entries, follow=options.follow, level=options.level)


def _findings(graph: units.UnitGraph, given: Given, found: ranges.Ranges) -> Mapping[int, Finding]:
    """What the analyses found; the last one counts: what fails in a runtime cannot even be forced."""
    options = given.options
    return {
        **observed.check(graph, given.seen, found, options.half),
        **quantised.check(graph, fused=options.target.has_faults),
        **integer_values.check(graph, found.fits, options.half),
        **found.findings,
        **(runtime_bugs.check(graph) if options.target.has_faults else {}),
        **_uncast(graph, options.half),
    }


def _uncast(graph: units.UnitGraph, half: Half) -> Mapping[int, Finding]:
    """All units of a model whose opset has no Cast to half: operators of other domains might take it."""
    old = _old_opset(graph.root, half)
    return {unit.index: Finding(old, always=True) for unit in graph.units} if old else {}


def _old_opset(root: ir.Graph, half: Half) -> str | None:
    version = element_types.default_opset(root.opset_imports)
    since = _BFLOAT16_SINCE if half.name == "bfloat16" else attribute_types.FIRST_TYPED_CAST
    if version >= since:
        return None
    return f"{half.name} needs opset {since}, and the model has {version}: nothing can change"


_BFLOAT16_SINCE = 13
"""The first opset whose operators take bfloat16 (Cast, MatMul, Add and their like, ONNX 1.8)."""
