"""The deciders on a prepared model: `Fresh`, by facts and rules, or `Replay`, as a saved plan says.

Both settle the options and the form of a model and choose its colours, for which it may be rescaled in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.facts import Facts, gather
from amp_rewrite.analysis.observed import Held, Seen
from amp_rewrite.analysis.outputs import ImpreciseOutputs
from amp_rewrite.bounds import deciding
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.colouring import classification, pruning, rules
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.options import Form, Options
from amp_rewrite.preparing.preparing import Prepared
from amp_rewrite.process.stopwatch import Progress, Stopwatch
from amp_rewrite.rescaling import region_search
from amp_rewrite.rewriting import argument_checks
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan import Choice
from amp_rewrite.rewriting.plan_files import SavedPlan

Transform = Callable[[ir.Model], Held]
"""A function that changes a loaded model before all other stages, and returns evidence for float32 values."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the decisions on a model depend on: the model, the options, who decides, observations of runs,
    imprecise outputs, and a change before all stages.
    """

    source: ModelSource
    options: Options
    decider: Fresh | Replay
    observed: Seen
    imprecise_outputs: ImpreciseOutputs
    transform: Transform | None
    timed: Stopwatch

    @classmethod
    def checked(
        cls,
        source: ModelSource,
        options: Options | None,
        replay: SavedPlan | None,
        observed: Seen | None,
        imprecise_outputs: ImpreciseOutputs | None,
        transform: Transform | None,
        progress: Progress | None,
    ) -> Request:
        """Return the arguments of a caller; raise ModelError and OptionError for those of wrong types."""
        argument_checks.check_types(source, options, replay, observed, imprecise_outputs)
        arguments.function("transform", transform)
        arguments.function("progress", progress)
        decider = Fresh() if replay is None else Replay(replay)
        options = decider.over(options or Options())
        return cls(
            source, options, decider, observed or {}, imprecise_outputs or {}, transform, Stopwatch(progress)
        )


def _facts(prepared: Prepared, request: Request, pinned: Held, observed: Seen) -> Facts:
    """Return the facts, with what samples of the user free."""
    with request.timed.stage("analyse"):
        found = gather(prepared, request.options, observed, request.imprecise_outputs, pinned)
        is_data = isinstance(request.observed, Observed) and not request.observed.is_synthetic
        return deciding.free_by_samples(found, observed, request.options) if is_data else found


class Fresh:
    """Decides by findings, bounds, lists and predicted times."""

    replay = None

    def over(self, options: Options) -> Options:
        """Return the options as they are."""
        return options

    def form(self, options: Options) -> Form:
        """Return the form that the options ask for."""
        return options.form

    def choose(self, prepared: Prepared, request: Request, pinned: Held) -> Choice:
        """Choose the colours, for the model as it is or with values rescaled."""
        choose = partial(self._choose, prepared, request, pinned)
        choice = choose(request.observed)
        if not (request.observed and request.options.rescales):
            return choice
        with request.timed.stage("rescale"):
            return region_search.improve(prepared, choice, choose, request.options)

    def _choose(self, prepared: Prepared, request: Request, pinned: Held, observed: Seen) -> Choice:
        facts, options, timed = _facts(prepared, request, pinned, observed), request.options, request.timed
        graph, proven = facts.graph, None
        with timed.stage("bound"):  # bounds that no decision needs are computed on demand
            if deciding.needs(facts, options):
                proven = Proven(prepared.model, facts, options)
                facts = deciding.decide(facts, proven, options)
        with timed.stage("classify"):
            entries = classification.classify(graph, facts.findings, options, facts.freed)
        with timed.stage("colour"):
            painting = rules.paint(graph, entries, follow=options.follows, level=options.level)
        with timed.stage("predict"):
            painting, paid = pruning.beside_pins(graph, facts.findings, facts.freed, painting, options)
            priced = pruning.settle(graph, painting, options, paid, decided=False)
        return Choice(observed, facts, proven, priced)


@dataclass(frozen=True, slots=True)
class Replay:
    """Decides as a saved plan says."""

    replay: SavedPlan

    def over(self, options: Options) -> Options:
        """Return the options with all that the plan decides taken from it."""
        return self.replay.over(options)

    def form(self, options: Options) -> Form:  # noqa: ARG002 - the plan has its own
        """Return the form in which the plan was made."""
        return self.replay.form

    def choose(self, prepared: Prepared, request: Request, pinned: Held) -> Choice:
        """Return the colours of the plan, for the model rescaled as it says; PlanError for another model."""
        plan, timed = self.replay, request.timed
        if plan.rescaled is not None:
            with timed.stage("rescale"):
                before = gather(prepared, request.options, {}, {}, pinned)
                region_search.replay(prepared, before, plan.rescaled, plan.where)
        facts = _facts(prepared, request, pinned, request.observed)
        with timed.stage("colour"):
            painting = plan.painting(facts.graph)
        with timed.stage("predict"):
            priced = pruning.settle(facts.graph, painting, request.options, decided=True)
        return Choice(request.observed, facts, None, priced, plan.rescaled)
