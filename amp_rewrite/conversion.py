"""The main job on one model: rewrite it, compare the result with it, and repair what fails."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import onnx

from amp_rewrite import arguments, pipeline
from amp_rewrite.analysis.observed import NOTHING, Extremes, Seen
from amp_rewrite.arguments import PathLike
from amp_rewrite.bounds.given import Source
from amp_rewrite.bounds.unit_ranges import RangeCounts
from amp_rewrite.coverage import counts
from amp_rewrite.errors import (
    AmpRewriteError,
    ModelError,
    OutputError,
    TimeLimitError,
)
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.files import staging
from amp_rewrite.model import output_paths, writing
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.options import OF_RESULT, Options
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import Progress, Stopwatch, counting, tell
from amp_rewrite.rewriting import result_checks
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.rewriting.report import Result
from amp_rewrite.running import emulation, sessions, tolerances
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data, of_source
from amp_rewrite.running.observation import observe
from amp_rewrite.running.sessions import LARGE, Device, Feeds, Samples
from amp_rewrite.running.tolerances import Metric, MetricFunction, Tolerances
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.text import plural
from amp_rewrite.tuning import repair
from amp_rewrite.tuning import trials as other_flags
from amp_rewrite.tuning.comparing import Judging, attempted, naming_sizes
from amp_rewrite.tuning.repair import Outcome, Settings, Verification
from amp_rewrite.tuning.search import Prefer, SearchStep, Watch
from amp_rewrite.tuning.tune import Tuned, tune

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings of the search after a failed comparison.

    `budget` is in seconds (None for a budget in runs), `largest` the bytes of the largest model to search,
    `executor` runs the samples, and `is_requested` is true if the user requested the search.
    """

    budget: float | None = None
    prefer: Prefer = Prefer.TIME
    largest: float = LARGE
    executor: Executor | None = None
    is_requested: bool = False


def _watching(progress: Progress | None) -> Watch:
    """Return a callback that shows the steps of a search."""

    def watch(step: SearchStep) -> None:
        rounded = f"{step.rounded:,} of {step.sites:,} values rounded"
        tell(progress, f"tune: {plural(step.runs, 'run')}, error {step.error:.1e}, {rounded}")

    return watch


@dataclass(frozen=True, slots=True)
class Conversion:
    """The specification of a job: a model, options and output, and how the result is compared.

    `source` is the model as it was given if that is neither a path nor a ModelProto. `seen` holds the ranges
    observed earlier. With `is_compared` the result is compared with the model, with `required` even an
    unchanged one. With `repairs` a failed comparison is followed by further attempts. `on_plan` gets the
    analysis before the model is changed. `given` collects the extremes of the samples, and `timed` the
    stages. It is the `Work` of a repair.
    """

    model: Path | onnx.ModelProto
    options: Options
    data: Data = field(default_factory=Data)
    judging: Judging = field(default_factory=Judging)
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(None))
    output: Path | None = None
    in_place: bool = False
    force: bool = False
    replay: SavedPlan | None = None
    seen: Observed | None = None
    is_compared: bool = True
    repairs: bool = True
    required: bool = False
    source: ModelSource | None = None
    tuning: Tuning = field(default_factory=Tuning)
    progress: Progress | None = None
    on_plan: Callable[[Analysis], None] = lambda _: None
    given: dict[str, Extremes] = field(default_factory=dict[str, Extremes])
    timed: Stopwatch = field(default_factory=Stopwatch)

    def run(self) -> Outcome:
        """Rewrite, compare and repair; raise as `pipeline.rewrite`."""
        self._stage("inputs", self._refuse_bad_data)
        outcome = self.blame(repair.repair(self, self.options, self._known))
        if not self.in_place:
            outcome = other_flags.with_trials(outcome, None if self.replay else self)
        report = replace(outcome.result.report, seconds=self.timed.seconds)
        result = replace(outcome.result, report=report)
        return replace(outcome, result=result, is_skipped=not self.is_compared)

    def plan(self) -> Analysis:
        """Analyze without writing; raise as `pipeline.analyze`."""
        analysis = pipeline.analyze(
            self._source, self.options, replay=self.replay, observed=self._known, progress=self.progress
        )
        self.on_plan(analysis)
        return analysis

    @property
    def _source(self) -> ModelSource:
        return self.model if self.source is None else self.source

    @property
    def _known(self) -> Seen:
        return {} if self.seen is None else self.seen

    @property
    def trusts_synthetic(self) -> bool:
        """True if the user requested a search, even on synthetic inputs."""
        return self.tuning.is_requested

    def _attempted(self, name: str, work: Callable[[], T]) -> T | AmpRewriteError:
        return attempted(self.limit, lambda: self._stage(name, work))

    def _stage(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` as a stage that is shown and timed."""
        tell(self.progress, name)
        with self.timed.stage(name):
            return work()

    def _refuse_bad_data(self) -> None:
        """Raise FeedError, before anything is written, for inputs that cannot be supplied.

        Every sample that was given is read once for that, and none in a file is retained.
        """
        if not self.is_compared:
            return
        if self.data.is_given:
            for sample in feeds.feeds(self.model, self.data):
                for name, extremes in _extremes(sample):
                    self.given[name] = extremes.join(self.given.get(name, NOTHING))
        elif self.data.dims or self.data.steps > 1:
            next(feeds.feeds(self.model, self.data), None)

    @contextlib.contextmanager
    def elsewhere(self) -> Generator[Conversion]:
        """Yield the same job on a temporary result, which is compared even if nothing changed."""
        tell(self.progress, "try")
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "tried.onnx" if isinstance(self._source, Path) else None
            yield replace(
                self, output=output, in_place=False, required=True, progress=None, on_plan=lambda _: None
            )

    def observe(self, before: Verification) -> Seen:
        """Merge the ranges observed earlier with those on the inputs of a comparison, if the model runs."""
        data = of_source(self.data, before.inputs) if isinstance(before, Verdict) else self.data
        observations = self._attempted("observe", lambda: self.observe_on(data))
        return self._known if isinstance(observations, AmpRewriteError) else observations

    def observe_on(self, data: Data, executor: Executor | None = None) -> Observed:
        """Merge the ranges observed earlier with those on these inputs; raise as `observe`."""
        with naming_sizes(self.model, data):
            source = feeds.input_source(data)
            observations = observe(
                self.model,
                feeds.feeds(self.model, data),
                inputs=source,
                on_sample=counting(self.progress, data.count_samples(source)),
                executor=executor,
                custom_ops=self.judging.libraries,
            )
        return observations if self.seen is None else self.seen.merge(observations)

    def tune(self, outcome: Outcome, stressed: Sequence[Feeds] = ()) -> Tuned | None:
        """Search for a plan on the samples of a comparison, and on these stressed ones; None for a saved plan
        or too large a model.
        """
        if self.replay is not None or outcome.result.report.size_before > self.tuning.largest:
            return None
        assert isinstance(outcome.verification, Verdict), "a verdict failed"
        data = of_source(self.data, outcome.verification.inputs)
        fresh = None if data.is_given else feeds.feeds(self.model, _fresh(data))
        samples, settings = feeds.feeds(self.model, data), outcome.settings
        search = self._attempted(
            "tune",
            lambda: tune(
                self.model,
                samples,
                settings.options,
                self.judging.bounds,
                fresh=fresh,
                metrics=self.judging.metrics,
                prefer=self.tuning.prefer,
                budget=self.tuning.budget,
                observed=settings.seen,
                imprecise_outputs=settings.imprecise_outputs,
                watch=_watching(self.progress),
                executor=self.tuning.executor,
                custom_ops=self.judging.libraries,
                device=self.judging.device,
                stressed=stressed,
            ),
        )
        return None if isinstance(search, AmpRewriteError) else search

    def half_flops(self, result: Result[Any]) -> int:
        """Return the FLOPs of a result that are computed in half, at the sizes of synthetic inputs."""
        flops = counts.measure(result.model, feeds.open_sizes(self.model, self.data)).flops
        return flops.half + flops.mixed

    def rewrite(self, settings: Settings) -> Result[Any]:
        """Rewrite the model; an unwritable default path raises an error that names `output`."""
        try:
            return self._write(settings)
        except OutputError as error:
            default = isinstance(self.model, Path) and output_paths.default(self.model, self.options.half)
            if self.output or self.in_place or error.where != str(default):
                raise
            remedy = "choose another place with `output`"
            raise OutputError(error.problem, where=error.where, remedy=remedy) from error

    def _write(self, settings: Settings) -> Result[Any]:
        result = pipeline.rewrite(
            self._source,
            _beside_a_plan(self.options) if settings.plan else settings.options,
            output=self.output,
            in_place=self.in_place,
            force=self.force,
            replay=settings.plan or self.replay,
            observed=settings.seen,
            imprecise_outputs=settings.imprecise_outputs,
            on_plan=self.on_plan,
            progress=self.progress,
        )
        report = result.report
        self.timed.add(report.seconds)
        warnings = (*report.warnings, *_outside(report.ranges, self.given, settings.seen))
        return replace(result, report=replace(report, warnings=warnings))

    def compare(self, result: Result[Any], *, fresh: bool = False) -> Verification:
        """Compare a result: return the verdict, the error that prevents it, or None without a comparison."""
        if not self.is_compared:
            return None
        if not (result.report.changed or self.required):
            return self._refusal()
        data = _fresh(self.data) if fresh else self.data
        return self._attempted(
            "verify",
            lambda: self.judging.verdict(self.model, result.model, data, self.options.io, self.progress),
        )

    def _refusal(self) -> ModelError | None:
        """Return the error of onnxruntime on a model that stays unchanged; None if it loads."""
        error = attempted(self.limit, self._open)
        return error if isinstance(error, ModelError) else None

    def _open(self) -> None:
        device = sessions.check_device(self.judging.device)
        with emulation.reference(self.model, device, self.judging.libraries):
            pass

    def blame(self, outcome: Outcome, *, for_page: bool = False) -> Outcome:
        """Attach blame to the verdict of the outcome, if there is one; for a page even to a good one."""
        verdict = outcome.verification
        if not isinstance(verdict, Verdict):
            return outcome
        models, data = (self.model, outcome.result.model), self.data
        blamed = self._attempted(
            "blame", lambda: self.judging.with_blame(verdict, *models, data, for_page=for_page)
        )
        return replace(outcome, verification=blamed) if isinstance(blamed, Verdict) else outcome


def refuse_unjudged(limit: TimeLimit, verdict: Verification, result: Any) -> None:
    """Raise TimeLimitError where the time limit expired and an unverified result would replace a file."""
    is_good = isinstance(verdict, Verdict) and verdict.ok
    if limit.is_over and not is_good and staging.current().replaces(result):
        overrun = f"running the models took longer than {limit.name} allows ({limit.seconds:g} s)"
        raise TimeLimitError(
            f"{overrun}, and the file there stays",
            where=Path(result).name,
            remedy=f"give {limit.name} more seconds",
        )


def _outside(ranges: RangeCounts | None, *sources: Seen | Mapping[str, Extremes]) -> Iterator[str]:
    """Yield a warning for each input whose samples or observations leave its range."""
    for bounds in ranges.inputs if ranges is not None else ():
        extremes = NOTHING
        for source in sources:
            extremes = extremes.join(source.get(bounds.name, NOTHING))
        low, high = extremes.low, extremes.high
        if not extremes.is_empty and (low < bounds.low or high > bounds.high):
            what = "declared" if bounds.source is Source.DECLARED else "assumed"
            yield (
                f"input '{bounds.name}' is between {low:g} and {high:g} in the samples, and {what} to be "
                f"between {bounds.low:g} and {bounds.high:g}, on which what is proven rests; give "
                "`Options.ranges`"
            )


def _extremes(sample: Feeds) -> Iterator[tuple[str, Extremes]]:
    for name, value in sample.items():
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind not in "OSUb":
            yield name, Extremes(float(value.min()), float(value.max()))


def _fresh(data: Data) -> Data:
    """Return synthetic inputs of another seed; given ones stay, as the search holds some out."""
    return data if data.is_given else replace(data, seed=data.seed + 1)


def _beside_a_plan(options: Options) -> Options:
    """Return the options that a plan does not decide, and ranges, device and sizes, which the report uses."""
    names = ("ranges", "device", "dims", *OF_RESULT)
    return Options(**{name: getattr(options, name) for name in names})


# The job as a function.


def convert(
    model: ModelSource,
    options: Options | None = None,
    data: Data | Samples | PathLike | Iterable[PathLike] | None = None,
    *,
    output: PathLike | None = None,
    in_place: bool = False,
    force: bool = False,
    plan: SavedPlan | None = None,
    observed: Observed | None = None,
    verify: bool = True,
    repair: bool = True,
    bounds: Tolerances | None = None,
    metrics: Metric | MetricFunction | Iterable[Metric | MetricFunction] = (),
    device: Device | str | None = None,
    custom_ops: PathLike | Iterable[PathLike] = (),
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Rewrite a model, compare the result with it, and repair what fails, as the command does.

    `model`, `options`, `output`, `in_place`, `force`, `plan` (as `replay`) and `observed` are those of
    `rewrite`. `data` are the inputs of the comparison: samples (mappings from input names to arrays), paths
    of .npz files or folders of them, or a `Data`; without any they are synthesised, which proves less. With
    `verify=False` nothing is run, and with `repair=False` what fails stays as it is. `bounds`, `metrics`,
    `device` and `custom_ops` are those of `verify`. Runs of models take `timeout` seconds at most together;
    `progress` is called with the name of each stage. A result that is written replaces a file once it is
    judged, and stays beside a verdict that is FAIL.

    Returns the outcome: `result` (with the report), `verdict`, `passes`, and `first`, the outcome before all
    repairs. A model that cannot be run is converted nevertheless, and `unverified` says why there is no
    verdict. Raises as `rewrite`, FeedError for data that do not fit, OptionError for other invalid arguments,
    and TimeLimitError where the limit leaves an unjudged result that would replace a file.

    Examples:
        >>> from amp_rewrite import convert
        >>> from amp_rewrite.demo import feeds, network
        >>> outcome = convert(network(), data=feeds())
        >>> outcome.passes, outcome.result.report.casts_added
        (True, 4)
    """
    options = Options() if options is None else options
    arguments.instance("options", options, Options, "write Options(half='bfloat16')")
    arguments.function("progress", progress)
    judging = Judging(
        Tolerances() if bounds is None else bounds,
        tolerances.several(metrics),
        device,
        sessions.check_libraries(custom_ops),
    )
    arguments.instance("bounds", judging.bounds, Tolerances, "write Tolerances(error=0.02)")
    if device is not None:
        sessions.check_device(device)  # before any work
    target = output_paths.choose(
        model, output, options.half, options.external_data, in_place=in_place, force=force
    )
    is_path = arguments.is_path(model)
    runnable = sessions.check_model("model", model)
    inputs = as_data(data)
    conversion = Conversion(
        model=Path(runnable) if isinstance(runnable, str | Path) else runnable,
        options=options,
        data=replace(inputs, ranges=inputs.ranges or options.ranges),
        judging=replace(judging, steps=inputs.steps),
        limit=TimeLimit(timeout),
        output=None if output is None else arguments.path("output", output),
        in_place=in_place,
        force=force,
        replay=plan,
        seen=observed,
        is_compared=verify,
        repairs=repair and plan is None,
        source=None if is_path else model,
        progress=progress,
    )
    with result_checks.blaming(lambda: str(model) if is_path else "the model"), writing.transaction(target):
        sizes = feeds.given_sizes(conversion.model, conversion.data)
        conversion = replace(conversion, options=replace(options, dims=sizes))
        outcome = conversion.run()
        refuse_unjudged(conversion.limit, outcome.verification, outcome.result.model)
        written = staging.current().commit(outcome.result.model)
    return replace(outcome, result=replace(outcome.result, model=written))


def as_data(data: Data | Samples | PathLike | Iterable[PathLike] | None) -> Data:
    """Return inputs that were given in any way as a `Data`."""
    if data is None or isinstance(data, Data):
        return Data() if data is None else data
    if arguments.is_path(data):
        return Data(data)
    given: Any = data
    if isinstance(given, Iterable) and not isinstance(given, (Mapping, str, bytes)):
        given = tuple(cast("Iterable[Any]", given))
        if given and all(map(arguments.is_path, given)):
            return Data(given)
    return Data(arrays=tuple(sessions.check_samples(cast("Samples", given))))
