"""Explanations of why each part is half or float32, from a model, a rewritten model, or a saved plan."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rewrite.bounds.unit_ranges import HalfRanges
from amp_rewrite.colouring.match_counts import Matched
from amp_rewrite.costs import flop_count
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.coverage.advice import Advice, advise
from amp_rewrite.coverage.counts import assumptions
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.explaining import causes, sentences, suggestions
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.explaining.suggestions import AnalysedModel, NodeRemedy
from amp_rewrite.files import reading
from amp_rewrite.model import loading
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.devices import Device
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.preparing.form_changes import FormChange
from amp_rewrite.rewriting import annotations, plan_files
from amp_rewrite.rewriting.decisions import Decisions


class DecisionSource(enum.Enum):
    """The source of decisions: a new ANALYSIS, the METADATA of a rewritten model, or a PLAN."""

    ANALYSIS = "analysis"
    METADATA = "metadata"
    PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The precision decisions of a model, with their root causes.

    `half` is the half type. `counted` is None for a plan without its model. `assumptions` are those of the
    FLOP counts; `matched` counts the nodes that the user's patterns match. `form_changes` are the nodes that
    were normalized before any decision, `exponents` those of values that are stored times powers of two, and
    `analysis` is that of the float32 model, if it is there.
    """

    source: DecisionSource
    half: str
    decisions: Decisions
    causes: tuple[RootCause, ...]
    counted: FlopCount | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    matched: tuple[Matched, ...] = ()
    form_changes: tuple[FormChange, ...] = ()
    exponents: Mapping[str, int] = field(default_factory=dict[str, int])
    analysis: Analysis | None = None

    def ranges(self) -> HalfRanges:
        """Return the ranges of half units; raise OptionError without the float32 model."""
        if self.analysis is None:
            raise OptionError("the ranges of values follow from the original", remedy="explain that instead")
        return self.analysis.ranges()

    def remedies(self, units: Sequence[int]) -> Sequence[NodeRemedy]:
        """Return the remedies that change the colour of each unit; empty for a plan or without a model."""
        analysis = self.analysis
        if analysis is None or analysis.replay or self.counted is None:
            return ()
        subject = AnalysedModel(
            analysis.graph, analysis.painting, analysis.options, analysis.painted, self.counted.flops
        )
        return tuple(suggestions.of_units(units, self.causes, subject))

    def advice(self, device: Device) -> Advice:
        """Return advice on speed for a device; raise OptionError for a plan alone."""
        if self.counted is None:
            raise OptionError("a plan alone has no shapes", remedy="ask for advice on the model, with --plan")
        return advise(self.counted, self.decisions, self.half, device)


def of_plan(path: Path) -> Explanation:
    """Explain a saved plan without its model; raise PlanError when it is missing or damaged."""
    plan = plan_files.load(path)
    decisions = plan.decided()
    untried = tuple(suggestions.untried(causes.find(decisions, decisions.flops)))
    half, assumed = plan.half.name, plan.assumptions
    return Explanation(DecisionSource.PLAN, half, decisions, untried, assumptions=assumed)


def of_analysis(analysis: Analysis) -> Explanation:
    """Explain the decisions of an analysis; for a replayed plan no flag was tried."""
    flop_counts = flop_count.count(analysis.loaded.model, analysis.graph.types, analysis.options.dims.dims)
    root_causes = analysis.causes(flop_counts.flops)
    source = DecisionSource.PLAN if analysis.replay else DecisionSource.ANALYSIS
    rests, half = tuple(assumptions(flop_counts)), analysis.options.half.name
    return Explanation(
        source=source,
        half=half,
        decisions=analysis.decisions(),
        causes=root_causes,
        counted=flop_counts,
        assumptions=rests,
        warnings=analysis.warnings,
        matched=analysis.matched,
        form_changes=analysis.report().form_changes,
        exponents=sentences.exponents(analysis.plan.rescaled),
        analysis=analysis,
    )


def of_model(path: Path, dims: Dims, analyze: Callable[[], Analysis]) -> Explanation:
    """Explain the decisions that a rewritten model carries; for any other model, those of `analyze`.

    Raises ModelError, and OptionError when `dims` names a dimension that is not open.
    """
    if not _mentions_us(path):
        return of_analysis(analyze())
    model = loading.load(path).model
    try:
        decisions, plan = annotations.read(model), annotations.stored(model.metadata_props)
    except ModelError as error:
        explanation = of_analysis(analyze())
        return replace(
            explanation, warnings=(*explanation.warnings, f"{error}; what follows is a new analysis")
        )
    if decisions is None or plan is None:
        return of_analysis(analyze())
    flop_counts = flop_count.count(model, element_types.infer(model), dims)
    untried = tuple(suggestions.untried(causes.find(decisions, flop_counts.flops)))
    rests = tuple(assumptions(flop_counts))
    return Explanation(
        DecisionSource.METADATA,
        plan.half.name,
        decisions,
        untried,
        flop_counts,
        rests,
        exponents=sentences.exponents(plan.rescaled),
    )


def _mentions_us(path: Path) -> bool:
    """Return False if a file cannot carry decisions; a byte search, much quicker than loading the model."""
    try:
        return annotations.KEY.encode() in reading.read(path)
    except OSError:
        return False  # loading it as a model reports the error
