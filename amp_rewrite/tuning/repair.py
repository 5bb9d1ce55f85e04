"""Rewriting, comparison, and repair of a result that violates its tolerances.

ATTEMPTS run in order, each on the best result so far; what passes on synthetic inputs is then insured against
stressed copies of these.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from amp_rewrite.analysis.observed import Extremes, Seen
from amp_rewrite.analysis.outputs import ImpreciseOutputs, imprecision_limit
from amp_rewrite.coverage import counts
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.errors import AmpRewriteError, CertificateError, ModelError
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rescaling.regions import Causes, causes_outside, select
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.rewriting.report import Result
from amp_rewrite.running import verdict_text
from amp_rewrite.running.metrics import SMALLEST
from amp_rewrite.running.sessions import Feeds
from amp_rewrite.running.verdict import Output, Verdict
from amp_rewrite.tuning.tune import Tuned

Verification = Verdict | AmpRewriteError | None
"""A verdict, or the error that prevented one; None if none was requested."""

LEAST = 0.9
"""The share of the predicted speed, and of the FLOPs in half, that a repair leaves on synthetic inputs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The inputs of a rewrite: options, observed ranges, outputs for which half is too coarse with their
    errors, and a plan, which replaces the other three. `search` is the outcome of a search, whether its plan
    is used or not.
    """

    options: Options
    seen: Seen = field(default_factory=dict[str, Extremes])
    imprecise_outputs: ImpreciseOutputs = field(default_factory=dict[str, float])
    plan: SavedPlan | None = None
    search: Tuned | None = None

    @property
    def decisive(self) -> tuple[object, ...]:
        """The settings that change the result; of observed ranges, those that leave half's, and whether those
        of samples of the user may free units.
        """
        half, may_free = self.options.half, isinstance(self.seen, Observed) and not self.seen.is_synthetic
        ranges = self.seen.items()
        outside = frozenset(name for name, each in ranges if each.is_beyond(half) or each.is_faint(half))
        return self.options, may_free, outside, self.imprecise_outputs, self.plan


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result, its verification, and its settings; `is_synthetic` if it was compared on synthetic inputs,
    and the user requested no search on these. `first` is the outcome before all repairs; None without a
    repair. With `is_skipped` no comparison was requested.

    Examples:
        >>> from amp_rewrite import convert
        >>> from amp_rewrite.demo import feeds, network
        >>> convert(network(), data=feeds())
        Outcome(PASS, 44 of 51 nodes in float16)
    """

    result: Result[Any]
    verification: Verification
    settings: Settings
    is_synthetic: bool = False
    first: Outcome | None = None
    is_skipped: bool = False

    def __repr__(self) -> str:
        """Return one line: the conclusion, and the counts of the result."""
        report = self.result.report
        conclusion = self.unverified if self.verdict is None else verdict_text.conclusion(self.verdict)
        half = f"{report.nodes.half + report.nodes.mixed:,} of {report.nodes.total:,} nodes in {report.half}"
        return f"Outcome({conclusion}, {half}{', repaired' if self.first else ''})"

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the comparison; None without one, for the reason in `unverified`."""
        return self.verification if isinstance(self.verification, Verdict) else None

    @property
    def unverified(self) -> str:
        """The reason why the result is not verified against the original; empty if it is."""
        if self.verdict is not None:
            return "; ".join(self.verdict.faults)
        if self.verification is not None:
            return str(self.verification)
        return "`verify=False` was given" if self.is_skipped else NOTHING_CHANGED

    def to_json(self, coverage: Coverage | None = None) -> dict[str, Any]:
        """Return the report, the verdict, and the search as JSON data; the result's coverage is measured if
        it is not given.

        Examples:
            >>> from amp_rewrite import convert
            >>> from amp_rewrite.demo import network
            >>> convert(network(), verify=False).to_json()['not_verified']
            '`verify=False` was given'
        """
        verification = None if self.verdict is None else verdict_text.to_json(self.verdict)
        if isinstance(self.verification, AmpRewriteError):
            verification = {"not_compared": str(self.verification)}
        coverage = coverage or coverage_of(self)
        return {
            **self.result.report.to_json(),
            "verified": not self.unverified,
            "not_verified": self.unverified or None,
            "verification": verification,
            "flops_in_half": coverage and coverage.flops.share,
            **({"tuning": self.tuned.to_json()} if self.tuned else {}),
        }

    @property
    def tuned(self) -> Tuned | None:
        """The search for a plan; None without one."""
        return self.settings.search

    @property
    def is_tuned(self) -> bool:
        """Whether the result is that of a searched plan."""
        return self.settings.plan is not None

    @property
    def passes(self) -> bool:
        """Whether it was compared, and passed."""
        return self.verdict is not None and self.verdict.ok

    @property
    def is_far(self) -> bool:
        """Whether its comparison violates bounds."""
        return self.verdict is not None and self.verdict.is_far

    @property
    def has_misfits(self) -> bool:
        """Whether a half input or output alone makes its comparison fail."""
        return self.verdict is not None and bool(self.verdict.misfits)

    @property
    def is_repairable(self) -> bool:
        """Whether it violates bounds because of computation, not of input or output types."""
        return self.is_far and not self.has_misfits

    @property
    def loses_values(self) -> bool:
        """Return whether a finite value of the original is non-finite in the result."""
        return self.verdict is not None and any(output.metrics.non_finite for output in self.verdict.outputs)


NOTHING_CHANGED = "nothing changed"
"""The reason for no comparison of a result that is its model."""


def coverage_of(outcome: Outcome) -> Coverage | None:
    """Return the coverage of a result; None where stored numbers that sizes depend on are damaged."""
    try:
        return counts.measure(outcome.result.model, outcome.settings.options.dims.dims)
    except ModelError:
        return None


class Work(Protocol):
    """The steps of a repair on one model. Each raises errors for which the command exits with code 2."""

    @property
    def repairs(self) -> bool:
        """Whether a failed comparison is followed by further attempts."""
        ...

    @property
    def trusts_synthetic(self) -> bool:
        """Whether synthetic inputs count as real ones, as the user requested a search on them."""
        ...

    def rewrite(self, settings: Settings) -> Result[Any]:
        """Rewrite the model to the path of the final result."""
        ...

    def compare(self, result: Result[Any], *, fresh: bool) -> Verification:
        """Verify a result; `fresh` synthetic inputs differ from those of a search."""
        ...

    def observe(self, before: Verification) -> Seen:
        """Run the float32 model on the inputs of an earlier comparison; return the ranges of its values."""
        ...

    def tune(self, outcome: Outcome, stressed: Sequence[Feeds] = ()) -> Tuned | None:
        """Search for a plan on the inputs of a comparison, which also passes on each of the stressed samples;
        None if that is impossible.
        """
        ...

    def half_flops(self, result: Result[Any]) -> int:
        """Count the FLOPs of a result that are computed in half."""
        ...

    def blame(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the blame for its error if it fails."""
        ...

    def elsewhere(self) -> AbstractContextManager[Work]:
        """Return the same work with its result in a temporary place."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """A repair: `when` it may help, the `settings` of another result, and whether that `is_better`.

    `settings` may run the model; None if there is nothing to try. Settings without effect on the result are
    kept for later attempts, without a rewrite. With `is_range` the attempt keeps in float32 values that
    overflow half, for which synthetic inputs are sufficient evidence; any other must be cheap on these
    (LEAST).
    """

    name: str
    when: Callable[[Outcome], bool]
    settings: Callable[[Work, Outcome], Settings | None]
    is_better: Callable[[Outcome, Outcome], bool] = lambda *_: True
    is_range: bool = False


def repair(work: Work, options: Options, prior_ranges: Seen | None = None) -> Outcome:
    """Rewrite and compare a model; repair the result by ATTEMPTS where work and level let runs decide.

    Ranges observed before may be passed. Raises as the steps do.
    """
    first = _make(work, Settings(options, prior_ranges or {}))
    if not work.repairs or options.level is Level.UNSAFE_FORCE_ALL or first.has_misfits:
        return first
    half_flops = work.half_flops(first.result) if _smaller(first) else 0
    best = _insured(work, _cheapest(work, first, _best(work, first), half_flops))
    is_repaired = best.settings.decisive != first.settings.decisive
    return _judged_by_its_inputs(replace(best, first=first) if is_repaired else best)


def _best(work: Work, first: Outcome) -> Outcome:
    """Return the best outcome of ATTEMPTS after the first, with its result at the final path, and a warning
    for each attempt whose result was not proved.
    """
    best = latest = first
    unproved: list[str] = []
    half_flops: int | None = None
    for attempt in ATTEMPTS:
        settings = attempt.settings(work, best) if attempt.when(best) else None
        if settings is None:
            continue
        if settings.decisive == best.settings.decisive:
            best = replace(best, settings=settings)
            continue
        has_price = best.is_synthetic and not (attempt.is_range or best.loses_values)
        if best.is_synthetic and half_flops is None:
            half_flops = work.half_flops(best.result)  # before the next result overwrites its file
        try:
            latest = _make(work, settings, best)
        except CertificateError as error:
            unproved.append(f"without the repair '{attempt.name}': {error.problem}")
            continue
        is_dear = has_price and _is_dear(work, best, latest, half_flops or 0)
        if attempt.is_better(best, latest) and not is_dear:
            best, half_flops = latest, None
        else:
            best = replace(best, settings=replace(best.settings, search=settings.search))
    if latest.settings.decisive != best.settings.decisive:
        best = replace(best, result=work.rewrite(best.settings))
    report = best.result.report
    report = replace(report, warnings=(*unproved, *report.warnings))
    return replace(best, result=replace(best.result, report=report))


def _smaller(first: Outcome) -> Verdict | None:
    """Return the verdict on smaller inputs that passes, of an outcome that loses values on synthetic ones."""
    return first.verdict.smaller if first.verdict is not None and first.is_synthetic else None


def _cheapest(work: Work, first: Outcome, best: Outcome, half_flops: int) -> Outcome:
    """Return the best outcome, or the first with its verdict on smaller inputs where a repair is dear or in
    vain: synthetic inputs may be larger than those of the user.
    """
    smaller = _smaller(first)
    if smaller is None or not (best.is_far or _is_dear(work, first, best, half_flops)):
        return best
    result = (
        first.result if best.settings.decisive == first.settings.decisive else work.rewrite(first.settings)
    )
    return replace(first, result=result, verification=smaller)


def _insured(work: Work, outcome: Outcome) -> Outcome:
    """Return an outcome that also passes on stressed copies of synthetic inputs, if that is cheap.

    All copies on which the outcome fails are tried together, then each alone.
    """
    verdict = outcome.verdict
    if not (outcome.is_synthetic and verdict is not None and outcome.passes):
        return outcome
    copies = [failed.feeds for failed in verdict.stressed if failed.feeds is not None]
    half_flops = work.half_flops(outcome.result) if copies else 0
    is_quick = half_flops * (1 + len(copies)) <= QUICK
    for stressed in (copies, *([copy] for copy in copies if len(copies) > 1)) if is_quick else ():
        search = work.tune(outcome, stressed) if stressed else None
        if search is None or not search.is_met:
            continue
        other = _make(work, Settings(outcome.settings.options, plan=search.plan), outcome)
        limit = INSURANCE if _saves_time(outcome) else 1 - LEAST
        if other.passes and sum(_losses(work, outcome, other, half_flops)) <= limit:
            return other
        outcome = replace(outcome, result=work.rewrite(outcome.settings))
    return outcome


QUICK = 1e9
"""The most FLOPs in half of a run on all samples with which an insurance is looked for: a few seconds."""

INSURANCE = 0.02
"""The most that an insurance against stressed inputs may cost, of speed and of FLOPs in half together; where
half saves no time, it may cost as many FLOPs as a repair.
"""


def _make(work: Work, settings: Settings, before: Outcome | None = None) -> Outcome:
    result = work.rewrite(settings)
    if settings.plan is not None and before is not None:  # a plan has no patterns to match
        result = replace(result, report=replace(result.report, matched=before.result.report.matched))
    verification = work.compare(result, fresh=settings.plan is not None)
    synthetic = isinstance(verification, Verdict) and verification.inputs.is_synthetic
    return Outcome(result, verification, settings, synthetic and not work.trusts_synthetic)


def _is_dear(work: Work, before: Outcome, after: Outcome, half_flops: int) -> bool:
    """Whether an attempt costs more speed or half FLOPs than synthetic inputs justify."""
    return max(_losses(work, before, after, half_flops)) > 1 - LEAST


def _losses(work: Work, before: Outcome, after: Outcome, half_flops: int) -> tuple[float, float]:
    """Return the shares of the predicted speed, where half saves time, and of the FLOPs in half that an
    outcome gives up.
    """
    was, now = before.result.report.prediction, after.result.report.prediction
    speed = 0.0
    if was is not None and _saves_time(before):
        seconds = was.float32.seconds if now is None else now.result.seconds
        speed = 1 - was.result.seconds / seconds
    flops = 1 - work.half_flops(after.result) / half_flops if half_flops else 0.0
    return max(speed, 0.0), max(flops, 0.0)


def _saves_time(outcome: Outcome) -> bool:
    prediction = outcome.result.report.prediction
    return prediction is not None and prediction.result.seconds < prediction.float32.seconds


def _judged_by_its_inputs(outcome: Outcome) -> Outcome:
    """Return the outcome; on synthetic inputs an error of any size is undecided, not a failure."""
    verdict = outcome.verdict
    if not (verdict is not None and outcome.is_repairable and outcome.is_synthetic):
        return outcome
    if outcome.loses_values or any(metric.fault for metric in verdict.metrics):
        return outcome
    return replace(outcome, verification=verdict.on_synthetic_inputs())


# ---- the attempts


def _without_proofs(_: Work, outcome: Outcome) -> Settings:
    return replace(outcome.settings, options=replace(outcome.settings.options, free=False))


def _observed(work: Work, outcome: Outcome) -> Settings:
    return replace(outcome.settings, seen=work.observe(outcome.verification))


def _without_rescaling(work: Work, outcome: Outcome) -> Settings:
    """Return settings without the regions that make a comparison fail; without any if it fails anyway."""
    settings, rescaled = outcome.settings, outcome.result.report.rescaled
    regions = rescaled.regions if rescaled is not None else ()

    def others(selected: Sequence[Causes]) -> Settings:
        unscaled = (*settings.options.unscaled, *causes_outside(selected, regions))
        options = replace(settings.options, rescale=bool(selected), unscaled=unscaled)
        return replace(settings, options=options)

    def passes(selected: Sequence[Causes]) -> bool:
        with work.elsewhere() as other, contextlib.suppress(CertificateError):
            verdict = other.compare(other.rewrite(others(selected)), fresh=False)
            return isinstance(verdict, Verdict) and not verdict.is_far
        return False

    is_worth_a_search = len(regions) > 1 and passes(())
    return others(select(regions, passes) if is_worth_a_search else ())


def _may_free(outcome: Outcome) -> bool:
    """Return whether samples of the user may free what is float32 for its range alone."""
    is_compared = outcome.verdict is not None and not outcome.verdict.inputs.is_synthetic
    return is_compared and not outcome.settings.seen and outcome.result.report.denied > 0


def _frees(before: Outcome, after: Outcome) -> bool:
    """Return whether more is half, and the result passes or was far off before."""
    is_more = after.result.report.denied < before.result.report.denied
    return before.is_far or (is_more and after.passes)


def _is_nearer(before: Outcome, after: Outcome) -> bool:
    old, new = before.verdict, after.verdict
    return old is not None and new is not None and new.error < old.error


def _float32_outputs(_: Work, outcome: Outcome) -> Settings | None:
    """Return settings with float32 outputs where rounding the output dominates an error above the limit."""
    if outcome.verdict is None:
        return None
    limit = imprecision_limit(outcome.settings.options.half)
    outputs = (output for output in outcome.verdict.outputs if output.floor and _is_rounded(output))
    imprecise = {output.name: output.floor for output in outputs if limit < (output.floor or 0) < math.inf}
    return replace(outcome.settings, imprecise_outputs=imprecise) if imprecise else None


def _is_rounded(output: Output) -> bool:
    """Whether rounding the output accounts for most of its error."""
    by_spread = max(1.0, SMALLEST / output.spread) if output.spread else 1.0  # however small
    return (output.floor or 0.0) <= 2 * (output.error or 0.0) * by_spread


def _brings_outputs_nearer(before: Outcome, after: Outcome) -> bool:
    """Return whether the verdict and these outputs are no worse, and the error of one at least halved."""
    old, new = before.verdict, after.verdict
    if old is None or new is None or old.ok > new.ok:
        return False
    was, now = ({output.name: output.error or 0.0 for output in each.outputs} for each in (old, new))
    shares = [now.get(name, math.inf) / was[name] for name in after.settings.imprecise_outputs]
    return max(shares) <= 1 and min(shares) <= 1 / 2


def _searched_plan(work: Work, outcome: Outcome) -> Settings | None:
    """Return settings with a search's plan if it passes; on user inputs also if nearer with half nodes."""
    search = work.tune(outcome)
    if search is None:
        return None
    assert outcome.verdict is not None, "a verdict failed"
    is_nearer = bool(search.half) and search.verdict.error < outcome.verdict.error
    may_fail = outcome.loses_values or not outcome.is_synthetic
    if search.is_met or (is_nearer and may_fail):
        return Settings(outcome.settings.options, plan=search.plan, search=search)
    return replace(outcome.settings, search=search)


def _passes_where_synthetic(before: Outcome, after: Outcome) -> bool:
    return after.passes or before.loses_values or not before.is_synthetic


ATTEMPTS = (
    Attempt("ranges of the samples", _may_free, _observed, _frees),
    Attempt("without range proofs", lambda far: far.is_far and far.result.report.freed > 0, _without_proofs),
    Attempt("observed ranges", lambda far: far.is_far, _observed, is_range=True),
    Attempt(
        "without rescaling",
        lambda far: far.is_far and far.result.report.rescaled is not None,
        _without_rescaling,
        _is_nearer,
        is_range=True,
    ),
    Attempt("float32 outputs", lambda _: True, _float32_outputs, _brings_outputs_nearer),
    Attempt("a searched plan", lambda far: far.is_repairable, _searched_plan, _passes_where_synthetic),
)
"""The repairs, in the order in which they are tried."""
