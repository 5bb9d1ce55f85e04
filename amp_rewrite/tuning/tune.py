"""`tune`: the plan that meets a target on samples, with half emulated."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from amp_rewrite import arguments, pipeline
from amp_rewrite.analysis.faint_outputs import Faint
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import FeedError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.policy.options import Options
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.plan import Plan
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.running import own_metrics, run_arguments
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.own_metrics import Metric, MetricFunction
from amp_rewrite.running.run_arguments import Samples
from amp_rewrite.running.sessions import Feeds
from amp_rewrite.running.tolerances import Tolerances
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.running.verification import verify
from amp_rewrite.tuning import sites
from amp_rewrite.tuning.search import Found, Point, Prefer, Search, Watch
from amp_rewrite.tuning.sites import Site
from amp_rewrite.tuning.switched_model import switched
from amp_rewrite.tuning.switched_session import opened

MOST_SAMPLES = 8
"""The samples that the search runs at most: each of its runs takes all of them."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A plan, and what it rests on.

    `verdict` is that of the model which the plan makes, on all samples. `target` is the error that the search
    stayed within (Metrics.error), and `noise` what float32 differs from itself by, optimised in another way.
    `kept` are the nodes that the search keeps in float32, and `sensitivity` the error that rounding adds at
    nodes, by name, as far as it was measured apart. `runs` counts how often all samples were run for the
    search, and `walked` has the plans that were measured, in their order, the default one first. `seconds` is
    the time that is predicted for the plan at large sizes, as those of `walked` are, and `half` the number of
    its units in half.

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

    @property
    def is_met(self) -> bool:
        """Whether the target is met, on all samples."""
        return self.verdict.ok

    @property
    def is_below_noise(self) -> bool:
        """Whether no plan can meet the target: float32 itself misses it."""
        return self.noise > self.target

    def to_json(self) -> dict[str, Any]:
        """This as JSON data, without the plan.

        Examples:
            >>> from amp_rewrite import tune
            >>> from amp_rewrite.demo import feeds, network
            >>> tune(network(), feeds()).to_json()["target"]
            0.01
        """
        names = "is_met target noise kept sensitivity sites runs seconds half".split()
        plain = {name: getattr(self, name) for name in names}
        walked = [asdict(point) for point in self.walked]
        return {**plain, "verdict": self.verdict.to_json(), "walked": walked}


def tune(
    model: ModelSource,
    samples: Samples,
    options: Options | None = None,
    bounds: Tolerances | None = None,
    *,
    max_error: float | None = None,
    metrics: Metric | MetricFunction | Iterable[Metric | MetricFunction] = (),
    prefer: Prefer | str = Prefer.TIME,
    budget: float = 120.0,
    seen: Seen | None = None,
    faint: Faint | None = None,
    watch: Watch | None = None,
    executor: Executor | None = None,
    custom_ops: PathLike | Iterable[PathLike] = (),
) -> Tuned:
    """The plan with the least predicted time, or with `prefer` "flops" most arithmetic in half, that passes
    `verify` with these bounds and metrics on all samples; `max_error` is short for Tolerances(error=...).

    The search emulates half on the CPU, for the first MOST_SAMPLES samples; all are kept in memory. `budget`
    are the seconds after which the best plan that was found is returned: never one that is worse than the
    default one. With the same samples, and time enough, the plan is the same. Carry it out with
    rewrite(model, replay=tuned.plan). `seen` and `faint` are those of `rewrite`; `watch` is called with every
    step. The workers of an `executor` (concurrent.futures) run a sample each, and have to see the same
    files. `custom_ops` are the libraries of the model's custom operators.

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
    judged = _bounds(bounds, max_error)
    runnable, own = run_arguments.model("model", model), own_metrics.several(metrics)
    end = time.monotonic() + _above_zero("budget", budget)
    prefer = arguments.choice("prefer", prefer, Prefer)
    arguments.function("watch", watch)
    if executor is not None:
        arguments.instance("executor", executor, Executor)
    libraries = run_arguments.libraries(custom_ops)
    feeds = list(run_arguments.samples(samples))
    if not feeds:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    analysis, twin = (pipeline.analyze(model, options, seen=seen, faint=faint) for _ in range(2))
    places = sites.find(analysis.graph, analysis.painting)
    switches = switched(twin, sites.find(twin.graph, twin.painting))  # which edits the twin
    bound = _target(judged)
    with opened(runnable, switches, feeds[:MOST_SAMPLES], bound, executor, libraries) as session:
        search = Search(analysis, places, session, bound, prefer)

        def confirm(found: Found) -> Tuned:
            plan = _saved(analysis, found)
            return Tuned(
                plan=plan,
                verdict=_verdict(model, plan, feeds, judged, own, libraries),
                target=bound,
                noise=math.sqrt(search.noise) * bound,
                kept=_names(analysis, found.kept),
                sensitivity=_sensitivity(analysis, places, search.errors, bound),
                sites=len(places),
                runs=session.runs,
                walked=tuple(search.walked),
                seconds=found.seconds,
                half=sum(map(found.painting.is_half, range(len(found.painting.paints)))),
            )

        return _confirmed(search, confirm, end, watch)


def _confirmed(search: Search, confirm: Callable[[Found], Tuned], end: float, watch: Watch | None) -> Tuned:
    """The first plan whose model passes, or the closest: the search is for less where a model fails."""
    share, found = _AT_FIRST, search.run(math.inf, end, watch)  # the default plan
    best = tuned = confirm(found)
    for _ in range(_CONFIRMATIONS):
        if tuned.is_met or not tuned.verdict.is_far or time.monotonic() > end:
            break
        share = min(share, _next(found, tuned))
        found = search.run(share**2, end, watch)
        tuned = confirm(found)
        best = min(best, tuned, key=lambda each: (not each.is_met, each.verdict.error))
    return best


_CONFIRMATIONS = 6

_AT_FIRST = 0.97
"""The share of the target to search for: most results were at most 3 % farther off than emulated."""

_TIGHTER, _FAR_TIGHTER = 0.98, 0.5
"""The share of an emulated error to search for, where the real one is above the target, and where it is not
but the verdict fails for something else."""


def _next(found: Found, tuned: Tuned) -> float:
    """The share of the target to search for after a plan that failed: halfway to where the next plan would
    be near enough if it were as much farther off than emulated as this one.
    """
    emulated, real = math.sqrt(found.squared), tuned.verdict.error / tuned.target
    if not math.isfinite(emulated):
        return 1.0
    return emulated / math.sqrt(real) * _TIGHTER if 1 < real < math.inf else emulated * _FAR_TIGHTER


def _bounds(bounds: Tolerances | None, max_error: float | None) -> Tolerances:
    if bounds is not None and max_error is not None:
        raise arguments.refused("max_error", "is given beside bounds", "write Tolerances(error=...)")
    if max_error is not None:
        return Tolerances(error=_above_zero("max_error", max_error))
    given = Tolerances() if bounds is None else bounds
    arguments.instance("bounds", given, Tolerances, "write Tolerances(error=0.02)")
    return given


def _target(bounds: Tolerances) -> float:
    """The error to search for: what bounds the distance of outputs, or the default."""
    return bounds.error or bounds.relative_l2 or Tolerances().error or math.inf


def _above_zero(name: str, given: object) -> float:
    if not arguments.is_number(given) or not 0 < given < math.inf:
        raise arguments.refused(name, f"{arguments.shown(given)} is not a number above zero")
    return float(given)


def _saved(analysis: Analysis, found: Found) -> SavedPlan:
    options = analysis.options
    text = plan_files.dump(analysis.graph, found.painting, Plan(options.half), options)
    return plan_files.parse(text, "the tuned plan")


def _verdict(
    model: ModelSource,
    plan: SavedPlan,
    feeds: Sequence[Feeds],
    bounds: Tolerances,
    metrics: tuple[Metric, ...],
    libraries: Libraries,
) -> Verdict:
    """What `verify` says of the model that a plan makes; written to a temporary file where it is one."""
    quick = Options(check=False, metadata=False)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "tuned.onnx" if arguments.is_path(model) else None
        result: Any = pipeline.rewrite(cast(Any, model), quick, output=output, replay=plan)
        asked = plan.over(Options())
        return verify(
            model,
            result.model,
            feeds,
            bounds,
            metrics=metrics,
            io=asked.io,
            accumulate=asked.target.accumulate,
            custom_ops=libraries,
        )


def _names(analysis: Analysis, units: Iterable[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pinned_as(analysis.graph.units[unit].node) for unit in units))


def _sensitivity(
    analysis: Analysis, places: Sequence[Site], errors: Sequence[float], bound: float
) -> dict[str, float]:
    """The error that rounding adds where a node makes or reads a value, by its name; the largest first."""
    found: dict[str, float] = {}
    for site, error in zip(places, errors, strict=True):
        producer = analysis.graph.producer.get(site.value)
        name = pinned_as(analysis.graph.units[site.units[0] if producer is None else producer].node)
        found[name] = math.hypot(found.get(name, 0.0), math.sqrt(error) * bound)
    return {name: found[name] for name in sorted(found, key=lambda each: -found[each]) if found[name]}
