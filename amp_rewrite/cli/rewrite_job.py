"""The main job on one file: rewrite, compare and repair, with the file-based steps that `repair` calls."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from amp_rewrite import pipeline
from amp_rewrite.analysis.observed import NOTHING, Extremes, Seen
from amp_rewrite.bounds.given import Source
from amp_rewrite.bounds.unit_ranges import RangeCounts
from amp_rewrite.cli.comparison_flags import ComparisonFlags, comparison_flags
from amp_rewrite.cli.decision_flags import DecisionFlags, decision_flags
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flag_builders import (
    STANDARD_OUTPUT,
    Command,
    Flag,
    grouped,
    json_flag,
    output_flag,
    quiet_flag,
    require_flag,
    verbose_flag,
    written_file,
)
from amp_rewrite.cli.html_page import html_flag
from amp_rewrite.cli.input_flags import input_flags, naming_sizes, timeout_flag
from amp_rewrite.cli.progress import counting, shown_progress, tell
from amp_rewrite.coverage import counts
from amp_rewrite.errors import (
    AmpRewriteError,
    FeedError,
    MissingPackageError,
    ModelError,
    OutputError,
    ResourceError,
    TimeLimitError,
)
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model import output_paths
from amp_rewrite.pipeline import Result
from amp_rewrite.placement.placement import Placement
from amp_rewrite.policy.named_policies import Policy
from amp_rewrite.policy.options import DECLARED, Options
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import Progress, Stopwatch
from amp_rewrite.rewriting import result_checks
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.running import emulation, run_arguments
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data, of_source
from amp_rewrite.running.observation import observe
from amp_rewrite.running.sessions import Feeds
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.text import plural
from amp_rewrite.tuning import repair, trials
from amp_rewrite.tuning.repair import Outcome, Settings, Verification
from amp_rewrite.tuning.search import Prefer, Step, Watch
from amp_rewrite.tuning.tune import Tuned, tune


def _outside(ranges: RangeCounts | None, *sources: Seen) -> Iterator[str]:
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
                f"between {bounds.low:g} and {bounds.high:g}, on which what is proven rests; give --range"
            )


def _extremes(sample: Feeds) -> Iterator[tuple[str, Extremes]]:
    for name, value in sample.items():
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind not in "OSUb":
            yield name, Extremes(float(value.min()), float(value.max()))


T = TypeVar("T")

CANNOT_RUN = (MissingPackageError, ModelError, FeedError, OutputError, ResourceError, TimeLimitError)
"""The errors that keep a model from being run here; they are reported, and the rewrite stands."""


def attempted(limit: TimeLimit, work: Callable[[], T]) -> T | AmpRewriteError:
    """Return the result of running models within a limit, or the error that keeps them from being run."""
    try:
        with limit.running():
            return work()
    except CANNOT_RUN as error:
        return error
    except MemoryError as error:  # of NumPy
        return ResourceError(f"the memory does not suffice ({error or 'MemoryError'})")


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings of the search after a failed comparison.

    `budget` is in seconds (None for a budget in runs), `largest` the bytes of the largest model to search,
    `executor` runs the samples, and `is_requested` is true if the user requested the search.
    """

    budget: float | None = None
    prefer: Prefer = Prefer.TIME
    largest: float = repair.LARGE
    executor: Executor | None = None
    is_requested: bool = False


def _watching(progress: Progress | None) -> Watch:
    """Return a callback that shows the steps of a search beside the spinner."""

    def watch(step: Step) -> None:
        if progress is not None:
            rounded = f"{step.rounded:,} of {step.sites:,} values rounded"
            progress(f"tune: {plural(step.runs, 'run')}, error {step.error:.1e}, {rounded}")

    return watch


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files that a job writes beside its result; None for those that were not named."""

    report: Path | None
    plan: Path | None
    html: Path | None
    observed: Path | None = None

    @property
    def names(self) -> str:
        """The names of all files, for the user."""
        files = (self.report, self.plan, self.html, self.observed)
        return ", ".join(str(file) for file in files if file and file.name != STANDARD_OUTPUT.name)


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """The specification of a rewrite: model, options and output, the inputs of a comparison, and its files.

    `seen` holds the ranges observed earlier, and `samples` are to be observed first. With `is_decided` a flag
    has a say in the decisions. With `is_compared` the result is compared with the model, with `required` even
    an unchanged one. With `needs_half` one without half fails, and with `compiles` one that TensorRT does not
    compile. `given` collects the extremes of the samples in files, `timed` the stages, and `engines` what
    TensorRT makes.
    """

    model: Path
    options: Options
    replay: SavedPlan | None
    policy: Policy | None
    seen: Observed | None
    data: Data
    comparing: ComparisonFlags
    limit: TimeLimit
    files: JobFiles
    output: Path | None
    needs_half: bool
    required: bool
    is_quiet: bool
    is_decided: bool = False
    is_compared: bool = True
    repairs: bool = True
    samples: tuple[Path, ...] = ()
    compiles: bool = False
    in_place: bool = False
    is_verbose: bool = False
    tuning: Tuning = field(default_factory=Tuning)
    progress: Progress | None = None
    on_plan: Callable[[Analysis], None] = lambda _: None
    given: dict[str, Extremes] = field(default_factory=dict[str, Extremes])
    timed: Stopwatch = field(default_factory=Stopwatch)
    engines: list[Placement] = field(default_factory=list[Placement])

    @contextlib.contextmanager
    def running(self, samples: Iterable[Path] = ()) -> Generator[RewriteJob]:
        """Yield the job with its progress shown, and open dimensions sized by its inputs or these samples.

        Raises OptionError or MissingPackageError, before any work, for a faulty provider or library.
        """
        self.comparing.refuse_missing()
        with result_checks.blaming(lambda: str(self.model)), shown_progress(quiet=self.is_quiet) as progress:
            sizes = feeds.given_sizes(self.model, self.data, samples)
            yield replace(self, options=replace(self.options, dims=sizes), progress=progress)

    def run(self) -> Outcome:
        """Rewrite, compare and repair; raise as `pipeline.rewrite`."""
        self._stage("inputs", self._refuse_bad_data)
        outcome = repair.repair(self, self.options, self._known)
        outcome = _in_flags(self.blame(outcome))
        if not self.in_place:
            outcome = trials.with_trials(outcome, None if self.replay else self)
        report = replace(outcome.result.report, seconds=self.timed.seconds)
        return replace(outcome, result=replace(outcome.result, report=report))

    def _attempted(self, name: str, work: Callable[[], T]) -> T | AmpRewriteError:
        return attempted(self.limit, lambda: self._stage(name, work))

    def _stage(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` as a stage that is shown and timed."""
        tell(self.progress, name)
        with self.timed.stage(name):
            return work()

    @contextlib.contextmanager
    def elsewhere(self) -> Generator[RewriteJob]:
        """Yield the same job on a temporary result, which is compared even if nothing changed."""
        tell(self.progress, "try")
        with tempfile.TemporaryDirectory() as folder:
            yield replace(
                self,
                output=Path(folder) / "tried.onnx",
                required=True,
                progress=None,
                on_plan=lambda _: None,
            )

    def _refuse_bad_data(self) -> None:
        """Raise FeedError, before anything is written, for inputs that cannot be supplied.

        Every sample in files is read once for that, and none is retained.
        """
        if not self.is_compared:
            return
        if self.data.paths:
            for sample in feeds.feeds(self.model, self.data):
                for name, extremes in _extremes(sample):
                    self.given[name] = extremes.join(self.given.get(name, NOTHING))
        elif self.data.dims or self.data.steps > 1:
            next(feeds.feeds(self.model, self.data), None)

    def plan(self) -> Analysis:
        """Analyze without writing; raise as `pipeline.analyze`."""
        analysis = pipeline.analyze(
            self.model, self.options, replay=self.replay, observed=self._known, progress=self.progress
        )
        self.on_plan(analysis)
        return analysis

    @property
    def _known(self) -> Seen:
        return {} if self.seen is None else self.seen

    @property
    def trusts_synthetic(self) -> bool:
        """True if the user requested a search, even on synthetic inputs."""
        return self.tuning.is_requested

    def observe(self, before: Verification) -> Seen:
        """Merge the ranges observed earlier with those on the inputs of a comparison, if the model runs."""
        data = of_source(self.data, before.inputs) if isinstance(before, Verdict) else self.data
        observations = self._attempted("observe", lambda: self.observe_on(data))
        return self._known if isinstance(observations, AmpRewriteError) else observations

    def observe_on(self, data: Data, executor: Executor | None = None) -> Observed:
        """Merge the ranges observed earlier with those on these inputs; raise as `observe`."""
        model = self.model
        with naming_sizes(model, data):
            source = feeds.input_source(data)
            observations = observe(
                model,
                feeds.feeds(model, data),
                inputs=source,
                on_sample=counting(self.progress, len(source.files) or data.samples),
                executor=executor,
                custom_ops=self.comparing.libraries,
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
        fresh = None if data.paths else feeds.feeds(self.model, _fresh(data))
        samples, settings = feeds.feeds(self.model, data), outcome.settings
        search = self._attempted(
            "tune",
            lambda: tune(
                self.model,
                samples,
                settings.options,
                self.comparing.judging.bounds,
                fresh=fresh,
                metrics=self.comparing.judging.metrics,
                prefer=self.tuning.prefer,
                budget=self.tuning.budget,
                observed=settings.seen,
                imprecise_outputs=settings.faint,
                watch=_watching(self.progress),
                executor=self.tuning.executor,
                custom_ops=self.comparing.libraries,
                device=self.comparing.provider,
                stressed=stressed,
            ),
        )
        return None if isinstance(search, AmpRewriteError) else search

    def half_flops(self, result: Result[Any]) -> int:
        """Return the FLOPs of a result that are computed in half, at the sizes of synthetic inputs."""
        flops = counts.measure(result.model, feeds.open_sizes(self.model, self.data)).flops
        return flops.half + flops.mixed

    def rewrite(self, settings: Settings) -> Result[Any]:
        """Rewrite the model; an unwritable default path raises an error that names -o."""
        try:
            return self._write(settings)
        except OutputError as error:
            default = output_paths.default(self.model, self.options.half)
            if self.output or self.in_place or error.where != str(default):
                raise
            remedy = "choose another place with -o"
            raise OutputError(error.problem, where=error.where, remedy=remedy) from error

    def _write(self, settings: Settings) -> Result[Any]:
        result = pipeline.rewrite(
            self.model,
            _beside_a_plan(self.options) if settings.plan else settings.options,
            output=self.output,
            in_place=self.in_place,
            force=True,  # refused before
            replay=settings.plan or self.replay,
            observed=settings.seen,
            imprecise_outputs=settings.faint,
            on_plan=self.on_plan,
            progress=self.progress,
        )
        report = result.report
        self.timed.add(report.seconds)
        warnings = (*map(in_flags, report.warnings), *_outside(report.ranges, self.given, settings.seen))
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
            lambda: self.comparing.verdict(self.model, result.model, data, self.options.io, self.progress),
        )

    def _refusal(self) -> ModelError | None:
        """Return the error of onnxruntime on a model that stays unchanged; None if it loads."""
        error = attempted(self.limit, self._open)
        return error if isinstance(error, ModelError) else None

    def _open(self) -> None:
        device = run_arguments.device(self.comparing.provider)
        with emulation.reference(self.model, device, self.comparing.libraries):
            pass

    def blame(self, outcome: Outcome, *, per_node: bool = False) -> Outcome:
        """Attach blame to the verdict of the outcome, if there is one; with `per_node` even to a good one."""
        comparing = replace(self.comparing, per_node=per_node or self.comparing.per_node)
        verdict = outcome.verification
        if not isinstance(verdict, Verdict):
            return outcome
        blamed = self._attempted(
            "blame", lambda: comparing.with_blame(verdict, self.model, outcome.result.model, self.data)
        )
        return replace(outcome, verification=blamed) if isinstance(blamed, Verdict) else outcome


def _in_flags(outcome: Outcome) -> Outcome:
    """Translate the fields named in the verdict of the outcome to flags."""
    verdict = outcome.verification
    if not isinstance(verdict, Verdict):
        return outcome
    return replace(outcome, verification=replace(verdict, unproven=tuple(map(in_flags, verdict.unproven))))


def _fresh(data: Data) -> Data:
    """Return synthetic inputs of another seed; inputs from files stay, as the search holds some out."""
    return replace(data, seed=data.seed + 1) if not data.paths else data


def _beside_a_plan(options: Options) -> Options:
    """Return the options that a plan does not decide, and ranges, device and sizes, which the report uses."""
    others = (name for name, declared in DECLARED.items() if not declared.in_plan)
    names = ("ranges", "device", "dims", *others)
    return Options(**{name: getattr(options, name) for name in names})


VERIFY = "verify"
"""The value of `--skip` and `--require` for the comparison of the result with the model."""
REPAIR = "repair"
"""The value of `--skip` for the attempts after a failed comparison."""
ENGINE = "tensorrt"
"""The value of `--require` for a result that TensorRT compiles."""


def job_flags(save_plan: str, *result: str, **settings: Any) -> Flag:
    """Return a decorator that adds the flags of a rewrite to a command and passes it a RewriteJob in `job`.

    `save_plan` is the help of that flag; the others are the arguments of `decision_flags`.
    """
    files = (
        output_flag("MODEL_fp16.onnx (or _bf16)", takes_folder=settings.get("takes_samples", False)),
        written_file("--save-plan", save_plan),
        json_flag("report"),
        html_flag,
        require_flag("half", *((VERIFY, ENGINE) if VERIFY in settings.get("steps", ()) else ())),
        quiet_flag,
        verbose_flag,
    )
    groups = (
        grouped(files, "own", dict),
        decision_flags(*result, **settings),
        input_flags,
        comparison_flags,
        timeout_flag,
    )

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_job(
            *,
            model: Path,
            own: Mapping[str, Any],
            asked: DecisionFlags,
            data: Data,
            comparing: ComparisonFlags,
            limit: TimeLimit,
            **arguments: Any,
        ) -> Any:
            job = RewriteJob(
                model=model,
                options=asked.options,
                replay=asked.replay,
                policy=asked.policy,
                seen=asked.seen,
                data=replace(data, ranges=asked.options.ranges, steps=comparing.steps),
                comparing=comparing,
                limit=limit,
                files=JobFiles(own["json_"], own["save_plan"], own["html"]),
                output=own["output"],
                needs_half="half" in own["require"],
                required=VERIFY in own["require"],
                is_compared=VERIFY not in asked.skipped,
                repairs=asked.replay is None and REPAIR not in asked.skipped,
                compiles=ENGINE in own["require"],
                samples=asked.samples,
                is_decided=asked.decided or asked.replay is not None,
                is_quiet=own["quiet"],
                is_verbose=own["verbose"],
            )
            return command(job=job, **arguments)

        return functools.reduce(lambda command, group: group(command), reversed(groups), with_job)

    return decorate
