"""The frozen analysis of a model: facts and decisions before the first edit, for reports and explanations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from amp_rewrite import arguments
from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.arguments import PathLike
from amp_rewrite.bounds import bounding, deciding, open_sums, unit_ranges
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.unit_ranges import HalfRanges
from amp_rewrite.colouring import classification, match_counts, pruning, rules
from amp_rewrite.colouring.match_counts import Matched
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs import flop_count
from amp_rewrite.costs.model_costs import Prices
from amp_rewrite.explaining import cases, causes, sentences, suggestions
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.files import staging
from amp_rewrite.model import output_paths
from amp_rewrite.model.loading import Loaded
from amp_rewrite.policy.evidence import Authority, Evidence
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.policy.targets import ONNXRUNTIME_WEBGPU
from amp_rewrite.preparing.form_changes import FormChangeKind
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.rewriting import decisions, plan_files, report
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.history import History
from amp_rewrite.rewriting.plan import Choice, Plan, float_state
from amp_rewrite.rewriting.plan_files import PlanOptions, SavedPlan
from amp_rewrite.rewriting.report import Obstacle, Report
from amp_rewrite.rewriting.result_checks import IOType, io_types
from amp_rewrite.rewriting.widened_model import has_half
from amp_rewrite.text import brief, plural


@dataclass(slots=True)
class Computed:
    """The parts of an analysis that are computed on demand; `proven` are the bounds behind the ranges."""

    decisions: Decisions | None = None
    proven: Proven | None = None
    ranges: HalfRanges | None = None


@dataclass(frozen=True, slots=True, repr=False, weakref_slot=True)
class Analysis:
    """The facts and decisions about a model, before the first edit.

    `findings` pin single units to float32, and `predicted` are warnings about predicted times. `replay` is
    the saved plan that decided, if one did. `loaded`, `graph` and `plan` refer to the model itself, as it was
    decided on: `rewrite` edits another one where an analysis is kept. `observed` are the values observed
    before the decisions.

    Examples:
        >>> from amp_rewrite import analyze
        >>> from amp_rewrite.demo import network
        >>> analysis = analyze(network())
        >>> unit = next(unit for unit in analysis.graph.units if unit.node.name == 'rms_sqrt')
        >>> analysis.painting.paints[unit.index].rule.value
        'left'
    """

    loaded: Loaded
    graph: UnitGraph
    painting: Painting
    plan: Plan
    options: Options
    findings: Mapping[int, Evidence]
    replay: SavedPlan | None
    warnings: tuple[str, ...]
    matched: tuple[Matched, ...]
    io: tuple[IOType, ...]
    computed: Computed
    predicted: tuple[str, ...]
    facts: Facts
    observed: Seen
    _prices: Prices | None
    _report: Report

    def __repr__(self) -> str:
        """Return a one-line summary of the planned result."""
        return brief(f"Analysis({self._report.in_short})")

    def report(self) -> Report:
        """Return the report as far as it is known before the rewrite.

        Examples:
            >>> from amp_rewrite import analyze
            >>> from amp_rewrite.demo import network
            >>> analyze(network()).report().nodes
            Counts(half=44, full=6, mixed=0, other=1)
        """
        ranges = self.computed.ranges
        return self._report if ranges is None else replace(self._report, ranges=ranges.counts)

    def ranges(self) -> HalfRanges:
        """Return bounds on the values of the units that are half.

        Where ranges were declared it is there from the start, else it is computed here.

        Examples:
            >>> from amp_rewrite import analyze
            >>> from amp_rewrite.demo import network
            >>> counts = analyze(network()).ranges().counts
            >>> counts.half_units, counts.proven
            (44, 34)
        """
        if self.computed.ranges is None:
            options = self.options
            proven = self.computed.proven or Proven(self.loaded.model, self.facts, options)
            halves = filter(self.painting.is_half, range(len(self.graph.units)))
            self.computed.ranges = unit_ranges.find(self.facts, halves, proven, self.observed, options.half)
        return self.computed.ranges

    def decisions(self) -> Decisions:
        """Return the decision on every unit, and why.

        Examples:
            >>> from amp_rewrite import analyze
            >>> from amp_rewrite.demo import network
            >>> decisions = analyze(network()).decisions()
            >>> sum(decision.is_half for decision in decisions.all)
            44
        """
        if self.computed.decisions is None:
            self.computed.decisions = decisions.of(self.graph, self.painting, self.plan)
        return self.computed.decisions

    def claims(self) -> str:
        """Return the nodes that are float32 by their reasons, and those that are half, as one line of text.

        Examples:
            >>> from amp_rewrite import analyze
            >>> from amp_rewrite.demo import network
            >>> analyze(network()).claims()[:57]
            'square mean_square shifted_square rms unscaled: stays flo'
        """
        return cases.claims(self.decisions())

    def causes(self, flops: causes.Flops | None = None) -> tuple[RootCause, ...]:
        """Return the causes of float32, with remedies: the most arithmetic first.

        `flops` are the floating-point operations of the nodes (costs.flop_count); without them the number of
        nodes counts. Every suggested change was tried; there are none with a saved plan,
        nor where weights alone are to be half.

        Examples:
            >>> from amp_rewrite import analyze
            >>> from amp_rewrite.demo import network
            >>> [(cause.operators, len(cause.affected)) for cause in analyze(network()).causes()]
            [(('Pow', 'ReduceMean', 'Add', 'Sqrt', 'Div'), 5), (('Softmax',), 1)]
        """
        root_causes = causes.find(self.decisions(), flops)
        if self.replay or self.options.storage_only:
            return tuple(suggestions.untried(root_causes))
        again = suggestions.AnalysedModel(self.graph, self.painting, self.options, self.painted, flops or {})
        return tuple(suggestions.tried(root_causes, again))

    def save_plan(self, path: PathLike, *, force: bool = False) -> None:
        """Write the decisions as JSON, for `load_plan` and `rewrite(..., replay=plan)`.

        Raises OptionError for a file that is no report of amp-rewrite, but with `force`, and OutputError.

        Examples:
            >>> import tempfile
            >>> from amp_rewrite import analyze, load_plan, rewrite
            >>> from amp_rewrite.demo import network
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     analyze(network()).save_plan(f'{folder}/plan.json')
            ...     plan = load_plan(f'{folder}/plan.json')
            >>> rewrite(network(), replay=plan).report.nodes.half
            44
        """
        place = arguments.path("path", path)
        output_paths.refuse_foreign(place, output_paths.FileKind.REPORT, force=force)
        staging.write(plan_files.dump(self.saved_plan()).encode(), place)

    def saved_plan(self, flops: causes.Flops | None = None, assumptions: tuple[str, ...] = ()) -> SavedPlan:
        """Return the decisions, for `rewrite(..., replay=plan)`.

        With `flops`, those of the nodes, and the `assumptions` behind these numbers, causes of float32 can be
        weighed without the model.

        Examples:
            >>> from amp_rewrite import analyze, rewrite
            >>> from amp_rewrite.demo import network
            >>> rewrite(network(), replay=analyze(network()).saved_plan()).report.nodes.half
            44
        """
        decided = decisions.of(self.graph, self.painting, self.plan, flops=flops)
        model, rescaled = plan_files.fingerprint(self.graph.root), self.plan.rescaled
        return plan_files.of(model, decided, self.plan_options, rescaled, assumptions)

    @property
    def plan_options(self) -> PlanOptions:
        """The options that decide with a saved plan: those of the one that was replayed, or of this run.

        Examples:
            >>> from amp_rewrite import analyze
            >>> from amp_rewrite.demo import network
            >>> analyze(network()).plan_options.half
            'float16'
        """
        return self.replay.options if self.replay is not None else plan_files.options_of(self.options)

    def painted(self, options: Options, unpruned: Collection[int] = ()) -> Painting:
        """Return the precision of each unit of the same model under other lists, pins, level and `follow`;
        `unpruned` units may be half at any cost.

        Raises OptionError for a pin that matches no node, or that no schema allows.

        Examples:
            >>> from amp_rewrite import Options, analyze
            >>> from amp_rewrite.demo import network
            >>> analysis = analyze(network())
            >>> forced = analysis.painted(Options(level="unsafe-force-all"))
            >>> all(map(forced.is_half, range(len(forced.paints))))
            True
        """
        entries = classification.classify(self.graph, self.findings, options, self.facts.freed)
        painting = rules.paint(self.graph, entries, follow=options.follows, level=options.level)
        unpinned_units, prices = self.facts.freed, self._prices
        painting, paid = pruning.beside_pins(
            self.graph, self.findings, unpinned_units, painting, options, prices
        )
        return pruning.pruned(self.graph, painting, options, prices, {*paid, *unpruned}).painting


def show(analysis: Analysis, on_plan: Callable[[Analysis], None]) -> bool:
    """Show an analysis to a caller, and return whether the caller keeps it."""
    shown = replace(analysis)
    kept = weakref.ref(shown)
    on_plan(shown)
    del shown
    return kept() is not None


def freeze(
    loaded: Loaded,
    history: History,
    prepared: Prepared,
    choice: Choice,
    plan: Plan,
    replay: SavedPlan | None,
) -> Analysis:
    """Return the analysis, with a snapshot of the facts that a later edit of the model would change; `replay`
    is the saved plan that decided, if one did.
    """
    facts, pricing, options = choice.facts, choice.priced, history.options
    graph, painting = facts.graph, pricing.painting
    is_predicted = options.target is not ONNXRUNTIME_WEBGPU or options.gate  # times are those of CUDA devices
    predicted = sentences.slowness(pricing.prediction, gated=pricing.gated) if is_predicted else ()
    warnings = (*loaded.warnings, *history.warnings, *prepared.warnings, *facts.warnings)
    if plan and prepared.constant_inputs:
        warnings = (*warnings, f"{plural(prepared.constant_inputs, 'input')} with a default {_CONSTANT}")
    counts = tuple[Matched, ...]()
    if replay is None:
        warnings = (*warnings, *match_counts.of_lists(graph, painting, options))
        counts = match_counts.find(graph, options.operator_lists(), options.pins)
    proven, products = choice.proven, open_sums.find(graph, painting.is_half)
    if products and (proven is not None or bounding.is_quick(facts)):
        proven = proven or Proven(prepared.model, facts, options)
        warnings = (*warnings, *open_sums.warnings(products, proven, options.half))
    matched = tuple(suggestions.with_effects(counts, graph, painting, options.half))
    proofs = (unit for unit, entry in enumerate(painting.entries) if entry.authority is Authority.PROOF)
    kinds = {change.kind for change in prepared.changes}
    known = replace(
        report.of_plan(plan, graph, painting, history.evidence),
        freed=sum(map(painting.is_half, proofs)),
        denied=deciding.count_denied(facts, painting.halves, options),
        state=float_state(plan, graph) if options.io is IOTypes.KEEP else None,
        form_changes=prepared.changes,
        newer_opset=prepared.newer,
        changed=bool(plan) or loaded.mended or FormChangeKind.OPSET_SET in kinds,
        size_before=loaded.size,
        matched=matched,
        prediction=pricing.prediction,
        gated=pricing.gated,
        warnings=(*warnings, *predicted),
    )
    analysis = Analysis(
        loaded,
        graph,
        painting,
        plan,
        options,
        facts.findings,
        replay,
        warnings,
        matched,
        io_types(loaded.model, graph.types),
        Computed(proven=proven),
        predicted,
        facts,
        choice.observed,
        pricing.prices,
        known,
    )
    if options.ranges:
        analysis.ranges()
    return analysis


def obstacle(analysis: Analysis) -> Obstacle | None:
    """Return the reason why nothing becomes half, the cause of the most float32 arithmetic; None where
    something does, or weights alone.
    """
    if any(analysis.painting.halves) or analysis.report().stored_half:
        return None
    model, half = analysis.loaded.model, analysis.options.half
    flops = flop_count.count(model, analysis.graph.types).flops
    arithmetic = (cause for cause in causes.find(analysis.decisions(), flops) if cause.operators != ("Cast",))
    sentence = next(map(sentences.of_cause, arithmetic), None)
    why = "" if sentence is None else f"{sentence.origin} ({sentence.weight}): {sentence.reason}"
    return Obstacle(why, has_half(model, (half.dtype,)))


_CONSTANT = "became constant, as weights are; `Options.keep_overridable` keeps such inputs"
