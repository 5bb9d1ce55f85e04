"""`tune`: the plan that meets a target on samples, with half emulated."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from amp_rewrite import arguments, pipeline
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.outputs import ImpreciseOutputs
from amp_rewrite.arguments import PathLike
from amp_rewrite.costs import flop_count
from amp_rewrite.errors import FeedError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.policy.options import Options
from amp_rewrite.rewriting.plan import Plan
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.rewriting.report import Report, SummaryLine
from amp_rewrite.running import sessions, tolerances
from amp_rewrite.running.sequences import Steps
from amp_rewrite.running.sessions import Device, Feeds, Samples
from amp_rewrite.running.tolerances import Metric, MetricFunction, Tolerances
from amp_rewrite.running.verdict import Verdict, error_in_words
from amp_rewrite.running.verification import verify
from amp_rewrite.text import brief, plural
from amp_rewrite.tuning.search import Candidate, Point, Prefer, Search, Watch, widest
from amp_rewrite.tuning.sensitivity import Site, find_sites, opened, switched

# The outcome of a search for a plan.


@dataclass(frozen=True, slots=True, repr=False)
class Tuned:
    """A plan, with its verdict and the evidence of the search.

    `verdict` is that of the rewritten model on all samples. `target` is the error bound of the search
    (Metrics.error), and `noise` the float32 noise between different optimisations. `kept` are the nodes that
    the search keeps in float32, and `sensitivity` is the error that rounding adds at nodes, by name, as far
    as measured separately. `runs` counts the runs of all samples, and `walked` has the measured plans in
    order, the default one first, with the error of its result. `seconds` is the predicted time of the plan
    at large sizes, as in `walked`, `half` its number of half units, 0 for float32, and `speedup` the
    predicted speedup over float32 at the model's sizes. `bound` names the tolerance of the target.

    Examples:
        >>> from amp_rewrite import tune
        >>> from amp_rewrite.demo import feeds, network
        >>> tuned = tune(network(), feeds(), max_error=1e-3)
        >>> tuned.is_met, tuned.kept
        (True, ())
    """

    plan: SavedPlan
    verdict: Verdict
    target: float
    noise: float
    kept: tuple[str, ...]
    sensitivity: dict[str, float]
    sites: int
    runs: int
    walked: tuple[Point, ...]
    seconds: float
    half: int
    speedup: float
    bound: str = "error"

    def __repr__(self) -> str:
        """Return one line: the verdict, and the nodes in float32."""
        return brief(f"Tuned({self.verdict!r}, {plural(len(self.kept), 'node')} kept in float32)")

    @property
    def is_met(self) -> bool:
        """Whether the target is met, on all samples."""
        return self.verdict.ok

    @property
    def is_float32(self) -> bool:
        """Whether the plan is float32, as no plan within the target is predicted to be faster."""
        return not self.half

    @property
    def is_below_noise(self) -> bool:
        """Whether float32 itself misses the target, so that no plan can meet it."""
        return self.noise > self.target

    def to_json(self) -> dict[str, Any]:
        """Return JSON data, without the plan.

        Examples:
            >>> from amp_rewrite import tune
            >>> from amp_rewrite.demo import feeds, network
            >>> tune(network(), feeds()).to_json()["target"]
            0.01
        """
        names = "is_met is_float32 target noise kept sensitivity sites runs seconds half speedup".split()
        plain = {name: getattr(self, name) for name in names}
        points = [asdict(point) for point in self.walked]
        return {**plain, "verdict": self.verdict.to_json(), "walked": points}


# Confirmation of emulated plans by `verify` on the real result.


def confirm_plan(
    search: Search, confirm: Callable[[Candidate], Tuned], end: float, watch: Watch | None
) -> Tuned:
    """Return the first plan whose model passes, or the closest; the target is tightened after each failure.
    Float32 if the gate is on, no plan is predicted to be faster, and float32 passes.
    """
    plan = search.run(math.inf, watch)  # the default plan
    best = tuned = confirm(plan)
    search.walked[0] = replace(search.walked[0], error=tuned.verdict.error)
    share = 1.0
    for confirmed in range(_CONFIRMATIONS):
        if not _goes_on(tuned) or (confirmed and time.monotonic() > end):
            break
        real = tuned.verdict.error / max(tuned.target, _NOTHING)
        share = _tighter(share, math.sqrt(plan.squared), real)
        before, plan = plan, search.run(share**2, watch)
        if plan.is_refused or plan == before:
            break
        tuned = confirm(plan)
        best = min(best, tuned, key=lambda each: (not each.is_met, each.verdict.error))
    return _float32_or(search, plan, best, confirm) if _goes_on(best) and plan.is_refused else best


def _goes_on(tuned: Tuned) -> bool:
    """Return whether a closer plan is needed and possible."""
    return not tuned.is_met and tuned.verdict.is_far and not tuned.is_below_noise


def _float32_or(search: Search, plan: Candidate, best: Tuned, confirm: Callable[[Candidate], Tuned]) -> Tuned:
    """Return the float32 plan if it passes, else the closer of the refused and the best plan."""
    exact = confirm(search.float32(plan))
    return exact if exact.is_met else min(best, confirm(plan), key=lambda each: each.verdict.error)


def _tighter(share: float, emulated: float, real: float) -> float:
    """Return the share of the target to search for after a plan that failed, by its errors over the target:
    halfway, on a logarithmic scale, to that at which the same ratio of real to emulated error would pass.

    Fusions of onnxruntime differ by float32 noise, which moves values to the neighbouring half number: for
    few outputs the errors may differ by half.
    """
    start = min(share, emulated)
    if emulated <= 1 and not 1 < real < math.inf:  # the verdict fails for another reason
        return start / 2
    ratio = real / emulated if 0 < emulated < math.inf and real < math.inf else 1.0
    return _BELOW * start / math.sqrt(max(1.0, start * ratio))


_CONFIRMATIONS = 6
"""The most plans to confirm after the default one."""

_BELOW = 0.97
"""The share of the error at which a plan is expected to pass: most real errors were at most 3 % above."""


_NOTHING = 1e-30
"""The least unit of errors: it stands in for a target of 0, and its square can be a divisor."""


# The outcome of a search for a plan, as a summary line.


def lines(tuned: Tuned | None, report: Report, *, is_taken: bool) -> Iterator[SummaryLine]:
    """Yield the outcome and effort of a search; nothing without a search. A plan that passes and is not taken
    costs more than synthetic inputs justify.
    """
    if tuned is not None:
        text = _outcome_text(tuned, report) if is_taken or not tuned.is_met else _not_taken(tuned)
        yield SummaryLine(
            "search", f"{text} ({plural(tuned.runs, 'run')} on {tuned.sites:,} values that half rounds)"
        )


def _not_taken(tuned: Tuned) -> str:
    before = "more than a tenth of the predicted speed or of the FLOPs in half"
    loss = "all that is half" if tuned.is_float32 else before
    return f"the plan within {_target(tuned)} gives up {loss}, too much for synthetic inputs"


def _outcome_text(tuned: Tuned, report: Report) -> str:
    if tuned.is_below_noise:
        off = f"float32 itself differs by {tuned.noise:.1e} when it is optimised differently"
        return f"{off}, so no plan is within {_target(tuned)}"
    if not tuned.sites and not tuned.is_met:
        return "nothing but inputs and outputs is half"
    if tuned.is_float32:
        return f"{_why_float32(tuned, report)}, so the model stays as it is"
    if tuned.is_met:
        first = tuned.walked[0]
        before = f", with {_an_error(first.error)}" if tuned.bound == "error" else ""
        return (
            f"within {_target(tuned)}, predicted {tuned.speedup:.2f} times as fast as float32; "
            f"{first.speedup:.2f} times before the search{before}"
        )
    if report.sensitive:
        return f"no plan was found within {_target(tuned)}; the nearest has {_reached(tuned)}"
    return f"no plan was found that is nearer, with at most {_target(tuned)} as the target"


def _why_float32(tuned: Tuned, report: Report) -> str:
    """Return a message that half does not pay within the target, or that no half plan passes."""
    near = [point.speedup for point in tuned.walked if point.half and point.error <= tuned.target]
    if not near:
        return f"nothing in half was found within {_target(tuned)}"
    if not report.gated:
        return "nothing in half was found that passes"
    if max(near) > 1:  # in emulation only
        return f"no plan within {_target(tuned)} was found that is predicted to be faster than float32"
    fastest = f"the fastest plan that was found within {_target(tuned)}"
    return f"float32 is fastest: {fastest} is predicted to be {max(near):.2f} times as fast"


def _target(tuned: Tuned) -> str:
    """Return the target, with its name unless it is `error`."""
    bound = f"{tuned.target:.1e}" if tuned.target else "0"
    return bound if tuned.bound == "error" else f"{tuned.bound} {bound}"


def _reached(tuned: Tuned) -> str:
    if tuned.bound == "error":
        return _an_error(tuned.verdict.error)
    return f"{tuned.bound} {max(output.metrics.relative_l2 for output in tuned.verdict.outputs):.1e}"


def _an_error(error: float) -> str:
    return f"an error of {error:.1e}" if math.isfinite(error) else error_in_words(error)


# The effort of a search.

FEWEST_RUNS = 24
"""The run budget; half the number of sites if that is more and within WORK."""

WORK = 1e11
"""The FLOPs of all runs together beyond which a search takes FEWEST_RUNS: 10 to 40 seconds on two cores."""

_ELEMENT, _NODE = 50.0, 5e4
"""The FLOPs that take as long as writing, rounding and reading an element, and as launching a node."""


def most_runs(sites: int, work: float = 0.0) -> int:
    """Return the run budget for so many sites, with `work` FLOPs per run."""
    runs = max(FEWEST_RUNS, sites // 2)
    return runs if work * runs <= WORK else max(FEWEST_RUNS, int(WORK / work))


def _work_of_run(analysis: Analysis, samples: Sequence[Mapping[str, Any]]) -> float:
    """Estimate the time of a run of all samples in FLOPs, from the shapes of the first one."""
    model, given = analysis.loaded.model, samples[0]
    sizes = {
        f"{value.name}:{axis}": given[str(value.name)].shape[axis]
        for value in model.graph.inputs
        if hasattr(given.get(str(value.name)), "shape")
        for axis, size in enumerate(value.shape or ())
        if not isinstance(size, int)
    }
    counts = flop_count.count(model, analysis.graph.types, sizes)
    work = float(counts.total)
    for graph, runs in counts.runs.items():
        shapes = (counts.shapes.of(value) for node in graph for value in node.outputs)
        elements = sum(math.prod(size or 1 for size in shape or ()) for shape in shapes)
        work += runs * (_ELEMENT * elements + _NODE * len(graph))
    return work * sum(sample.count if isinstance(sample, Steps) else 1 for sample in samples)


MOST_SAMPLES = 8
"""The most samples of the search: each of its runs takes all of them."""


def tune(
    model: ModelSource,
    samples: Samples,
    options: Options | None = None,
    bounds: Tolerances | None = None,
    *,
    max_error: float | None = None,
    metrics: Metric | MetricFunction | Iterable[Metric | MetricFunction] = (),
    prefer: Prefer | str = Prefer.TIME,
    budget: float | None = None,
    fresh: Samples | None = None,
    observed: Seen | None = None,
    imprecise_outputs: ImpreciseOutputs | None = None,
    watch: Watch | None = None,
    executor: Executor | None = None,
    custom_ops: PathLike | Iterable[PathLike] = (),
    device: Device | str | None = None,
    steps: int = 1,
    stressed: Sequence[Feeds] = (),
) -> Tuned:
    """Search for the plan with the least predicted time, or with `prefer` "flops" most arithmetic in half,
    that passes `verify` with these bounds and metrics on all samples; `max_error` is short for
    Tolerances(error=...). With `Options.gate` float32 is a plan too if the default plan fails: no plan that
    is predicted to be slower at the model's sizes replaces it.

    The search emulates half on the CPU, for every other sample, up to MOST_SAMPLES; all stay in memory. Its
    plans are confirmed on all of them, and on the samples in `fresh`, which the search does not see. The
    number of runs depends on the model alone, so that the same samples give the same plan; with a `budget` in
    seconds instead, at least half of it for the search itself, it returns the best plan by then. No plan is
    worse than the default one; where none passes, `is_met` is False. Apply it with rewrite(model,
    replay=tuned.plan). `observed` and `imprecise_outputs` are those of `rewrite`; `watch` is called with
    every step. The workers of an `executor` (concurrent.futures) run a sample each, and have to see the same
    files. `custom_ops` are the libraries of the model's custom operators. `device` is where `verify` judges.
    With `steps`, samples make sequences as in `verify`. The plan has to pass on each of the `stressed`
    samples as well, by itself.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError if the model does not run, or a
    sample does not fit, OptionError for invalid arguments, and WorkerError where a worker ends before its
    work is done.

    Examples:
        >>> from amp_rewrite import rewrite, tune
        >>> from amp_rewrite.demo import feeds, network
        >>> tuned = tune(network(), feeds(), max_error=1e-3)
        >>> rewrite(network(), replay=tuned.plan).report.nodes.half
        44
    """
    judged = _bounds(bounds, max_error).of((options or Options()).half)
    runnable, own = sessions.check_model("model", model), tolerances.several(metrics)
    seconds = math.inf if budget is None else _above_zero("budget", budget)
    end = time.monotonic() + seconds
    prefer = arguments.choice("prefer", prefer, Prefer)
    arguments.function("watch", watch)
    if executor is not None:
        arguments.instance("executor", executor, Executor)
    feeds = list(sessions.check_samples(samples, model, steps))
    if not feeds:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    searched = [*feeds[:: 2 if fresh is None else 1][:MOST_SAMPLES], *stressed]
    others = [feeds] if fresh is None else [list(sessions.check_samples(fresh, model, steps)), feeds]
    libraries = sessions.check_libraries(custom_ops)
    groups = [*others, *([each] for each in stressed)]
    judging = {"bounds": judged, "metrics": own, "device": device, "custom_ops": libraries}
    analysis, twin = (
        pipeline.analyze(model, options, observed=observed, imprecise_outputs=imprecise_outputs)
        for _ in range(2)
    )
    painting = widest(analysis, prefer)
    rounding = find_sites(analysis.graph, painting)
    switches = switched(twin, find_sites(twin.graph, widest(twin, prefer)).places)  # edits the twin
    bound = max(_target_error(judged), _NOTHING)
    work = _work_of_run(analysis, searched) if budget is None else 0.0
    with opened(runnable, switches, searched, bound, executor, libraries, len(stressed)) as session:
        now = time.monotonic()  # setup may be slow on a busy machine
        end = max(end, now + seconds / 2)
        runs, until = most_runs(len(rounding.sites), work), now + (end - now) / 2
        search = Search(analysis, painting, rounding, session, bound, prefer, runs, until)

        def confirm(candidate: Candidate) -> Tuned:
            plan = _saved(analysis, candidate)
            names = (pinned_as(analysis.graph.units[unit].node) for unit in candidate.kept)
            return Tuned(
                plan=plan,
                verdict=_verdict(model, plan, groups, judging),
                target=_target_error(judged),
                noise=math.sqrt(search.noise) * bound,
                kept=tuple(dict.fromkeys(names)),
                sensitivity=_sensitivity(analysis, rounding.sites, search.errors, bound),
                sites=len(rounding.sites),
                runs=session.runs,
                walked=tuple(search.walked),
                seconds=candidate.seconds,
                half=sum(candidate.painting.halves),
                speedup=candidate.predicted.speedup,
                bound="relative_l2" if judged.error is None and judged.relative_l2 is not None else "error",
            )

        best = confirm_plan(search, confirm, end, watch)
        return replace(best, runs=session.runs, walked=tuple(search.walked))


def _bounds(bounds: Tolerances | None, max_error: float | None) -> Tolerances:
    if bounds is not None and max_error is not None:
        raise arguments.refused("max_error", "is given beside bounds", "write Tolerances(error=...)")
    if max_error is not None:
        return Tolerances(error=_above_zero("max_error", max_error))
    limits = Tolerances() if bounds is None else bounds
    arguments.instance("bounds", limits, Tolerances, "write Tolerances(error=0.02)")
    return limits


def _target_error(bounds: Tolerances) -> float:
    """Return the error target: the bound on the error of outputs, or the default."""
    first = next((bound for bound in (bounds.error, bounds.relative_l2) if bound is not None), None)
    return first if first is not None else Tolerances().error or math.inf


def _above_zero(name: str, value: object) -> float:
    if not arguments.is_number(value) or not 0 < value < math.inf:
        raise arguments.refused(name, f"{arguments.describe(value)} is not a number above zero")
    return float(value)


def _saved(analysis: Analysis, candidate: Candidate) -> SavedPlan:
    plan = Plan(analysis.options.half, rescaled=analysis.plan.rescaled)
    return replace(analysis, painting=candidate.painting, plan=plan).saved_plan()


def _verdict(
    model: ModelSource, plan: SavedPlan, groups: Sequence[Sequence[Feeds]], keywords: Mapping[str, Any]
) -> Verdict:
    """Return the first verdict of `verify`, with these keywords, on the model of a plan that fails on a group
    of samples, or that on the first group; if the model is a file, the result is a temporary file.
    """
    quick = Options(check=False, metadata=False, certify=False)  # what is applied is checked and proved
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "tuned.onnx" if arguments.is_path(model) else None
        result: Any = pipeline.rewrite(cast(Any, model), quick, output=output, replay=plan)
        io = plan.over(Options()).io
        verdicts = [verify(model, result.model, samples, io=io, **keywords) for samples in groups]
        return max(verdicts, key=lambda verdict: verdict.is_far)


def _sensitivity(
    analysis: Analysis, places: Sequence[Site], errors: Sequence[float], bound: float
) -> dict[str, float]:
    """Return the error that rounding adds at each node, by its name, in descending order."""
    by_name: dict[str, float] = {}
    for site, error in zip(places, errors, strict=True):
        producer = analysis.graph.producer.get(site.value)
        name = pinned_as(analysis.graph.units[site.units[0] if producer is None else producer].node)
        by_name[name] = math.hypot(by_name.get(name, 0.0), math.sqrt(error) * bound)
    return {name: by_name[name] for name in sorted(by_name, key=lambda each: -by_name[each]) if by_name[name]}
