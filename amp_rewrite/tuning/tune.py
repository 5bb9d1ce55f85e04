"""`tune`: the plan that meets a target on samples, with half emulated."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
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
from amp_rewrite.running.own_metrics import Metric, MetricFunction
from amp_rewrite.running.run_arguments import Samples
from amp_rewrite.running.sessions import Device, Feeds
from amp_rewrite.running.tolerances import Tolerances
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.running.verification import verify
from amp_rewrite.tuning import confirming, effort, sites
from amp_rewrite.tuning.search import Search, widest
from amp_rewrite.tuning.sites import Site
from amp_rewrite.tuning.switched_model import switched
from amp_rewrite.tuning.switched_session import opened
from amp_rewrite.tuning.tuned import Found, Prefer, Tuned, Watch

MOST_SAMPLES = 8
"""The samples that the search runs at most: each of its runs takes all of them."""


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
    seen: Seen | None = None,
    faint: Faint | None = None,
    watch: Watch | None = None,
    executor: Executor | None = None,
    custom_ops: PathLike | Iterable[PathLike] = (),
    device: Device | str | None = None,
) -> Tuned:
    """The plan with the least predicted time, or with `prefer` "flops" most arithmetic in half, that passes
    `verify` with these bounds and metrics on all samples; `max_error` is short for Tolerances(error=...).
    Where the default plan does not pass, float32 is a plan too: what the search finds instead is never
    predicted slower, at the sizes that the model has, unless `prefer` or a pin (`Pins.force_half`) asks for
    it, or the default plan is slower as well. Then nothing is half, with the rule `gate`.

    The search emulates half on the CPU, for every other sample, up to MOST_SAMPLES; all are kept in memory.
    Its plans are confirmed on all of them, or on the samples in `fresh` alone. It takes a number of runs that
    depends on the model alone, so that the same samples give the same plan; with a `budget` it takes so many
    seconds in place of that, at least half of them for the search itself, and returns the best plan by then.
    No plan is worse than the default one. Carry it out with rewrite(model, replay=tuned.plan). `seen` and
    `faint` are those of `rewrite`; `watch` is called with every step. The workers of an `executor`
    (concurrent.futures) run a sample each, and have to see the same files. `custom_ops` are the libraries of
    the model's custom operators. `device` is where `verify` judges.

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
    seconds = math.inf if budget is None else _above_zero("budget", budget)
    end = time.monotonic() + seconds
    prefer = arguments.choice("prefer", prefer, Prefer)
    arguments.function("watch", watch)
    if executor is not None:
        arguments.instance("executor", executor, Executor)
    libraries = run_arguments.libraries(custom_ops)
    feeds = list(run_arguments.samples(samples))
    if not feeds:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    searched = feeds[:: 2 if fresh is None else 1][:MOST_SAMPLES]
    confirmed = feeds if fresh is None else list(run_arguments.samples(fresh))
    analysis, twin = (pipeline.analyze(model, options, seen=seen, faint=faint) for _ in range(2))
    painting = widest(analysis, prefer)
    rounding = sites.find(analysis.graph, painting)
    switches = switched(twin, sites.find(twin.graph, widest(twin, prefer)).places)  # which edits the twin
    bound = confirming.searched(_wanted(judged))
    graph = analysis.graph
    work = effort.work_of_run(analysis.loaded.model, graph.types, searched) if budget is None else 0.0
    runs = effort.most_runs(len(rounding.sites), work)
    with opened(runnable, switches, searched, bound, executor, libraries) as session:
        end = max(end, time.monotonic() + seconds / 2)  # a busy machine may take long to get here
        search = Search(analysis, painting, rounding, session, bound, prefer, runs, end)

        def confirm(found: Found) -> Tuned:
            plan = _saved(analysis, found)
            kept = (pinned_as(analysis.graph.units[unit].node) for unit in found.kept)
            return Tuned(
                plan=plan,
                verdict=_verdict(
                    model, plan, confirmed, judged, metrics=own, device=device, custom_ops=libraries
                ),
                target=_wanted(judged),
                noise=math.sqrt(search.noise) * bound,
                kept=tuple(dict.fromkeys(kept)),
                sensitivity=_sensitivity(analysis, rounding.sites, search.errors, bound),
                sites=len(rounding.sites),
                runs=session.runs,
                walked=tuple(search.walked),
                seconds=found.seconds,
                half=sum(found.painting.halves),
                speedup=found.predicted.speedup,
                bound="relative_l2" if _is_relative(judged) else "error",
            )

        best = confirming.confirmed(search, confirm, end, watch)
        return replace(best, runs=session.runs, walked=tuple(search.walked))


def _bounds(bounds: Tolerances | None, max_error: float | None) -> Tolerances:
    if bounds is not None and max_error is not None:
        raise arguments.refused("max_error", "is given beside bounds", "write Tolerances(error=...)")
    if max_error is not None:
        return Tolerances(error=_above_zero("max_error", max_error))
    given = Tolerances() if bounds is None else bounds
    arguments.instance("bounds", given, Tolerances, "write Tolerances(error=0.02)")
    return given


def _wanted(bounds: Tolerances) -> float:
    """The error to stay within: what bounds the distance of outputs, or the default."""
    first = next((bound for bound in (bounds.error, bounds.relative_l2) if bound is not None), None)
    return first if first is not None else Tolerances().error or math.inf


def _is_relative(bounds: Tolerances) -> bool:
    """Whether the error to stay within is that of `relative_l2`."""
    return bounds.error is None and bounds.relative_l2 is not None


def _above_zero(name: str, given: object) -> float:
    if not arguments.is_number(given) or not 0 < given < math.inf:
        raise arguments.refused(name, f"{arguments.shown(given)} is not a number above zero")
    return float(given)


def _saved(analysis: Analysis, found: Found) -> SavedPlan:
    options = analysis.options
    text = plan_files.dump(analysis.graph, found.painting, Plan(options.half), options)
    return plan_files.parse(text, "the tuned plan")


def _verdict(
    model: ModelSource, plan: SavedPlan, feeds: Sequence[Feeds], bounds: Tolerances, **judging: Any
) -> Verdict:
    """What `verify` says of the model that a plan makes; it is a temporary file where the model is one."""
    quick = Options(check=False, metadata=False)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "tuned.onnx" if arguments.is_path(model) else None
        result: Any = pipeline.rewrite(cast(Any, model), quick, output=output, replay=plan)
        settled = plan.over(Options())
        sums = settled.target.accumulate
        return verify(model, result.model, feeds, bounds, io=settled.io, accumulate=sums, **judging)


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
