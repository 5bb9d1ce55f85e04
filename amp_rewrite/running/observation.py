"""Calibration runs of the float32 model that observe the extremes of all its values, by sample."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.arguments import PathLike, function, instance
from amp_rewrite.errors import FeedError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.process import executors
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running import metrics, reductions, run_arguments, sessions
from amp_rewrite.running.inputs.feeds import FROM_CALLER, InputSource
from amp_rewrite.running.instrumented_model import LightModel, as_file, light
from amp_rewrite.running.reductions import ReducedRow
from amp_rewrite.running.run_arguments import Samples
from amp_rewrite.running.sequences import Steps
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable

PART = 8
"""The samples per task of an executor."""

COUNTED = 2
"""The samples in which the elements of all values are counted, which takes longer than to find extremes."""

REOPENED = 4
"""The most reopenings of a session for further values to count; afterwards all values are counted."""


def observe(
    model: ModelSource,
    samples: Samples,
    *,
    device: Device | str | None = None,
    timeout: float | None = None,
    steps: int = 1,
    inputs: InputSource = FROM_CALLER,
    on_sample: Callable[[int], object] | None = None,
    executor: Executor | None = None,
    custom_ops: PathLike | Iterable[PathLike] = (),
) -> Observed:
    """Return the extremes of all float32 values over all samples, including If, Loop and Scan bodies.

    The model can be of any kind that `rewrite` takes; the result is for its argument `observed`. A sample is
    a mapping from input names to arrays; `samples` is one sample or an iterable of samples, of which one at a
    time is in memory, and `inputs` their source. With `steps`, they make sequences as in `verify`. Each run
    reduces the values, and retains none.
    `on_sample` is called after each sample with the number of samples so far. `device` is "cuda" or "cpu"; by
    default CUDA if it works. Elements are counted in the first two samples (COUNTED), and from then on of
    values that have elements which are not finite, or beyond float16; within runs at opset 9 or later.

    The workers of an `executor` (concurrent.futures) observe PART samples at a time, and count elements in
    the first two of each part; the extremes are the same. They have to see the same files. `custom_ops` are
    the libraries of the model's custom operators, of whose values only inputs are seen.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError if the model does not run, or the
    model or a sample is invalid or holds NaN, FeedError if there is no sample, or if no float value is
    finite, OptionError for other invalid arguments, TimeLimitError after `timeout` seconds, and
    WorkerError where a worker ends before its work is done.

    Examples:
        >>> from amp_rewrite import observe
        >>> from amp_rewrite.demo import feeds, network
        >>> seen = observe(network(), [feeds(seed) for seed in range(3)])
        >>> seen.samples, seen["probabilities"].high <= 1
        (3, True)
    """
    runnable = run_arguments.model("model", model)
    runs = run_arguments.samples(samples, model, steps)
    function("on_sample", on_sample)
    if executor is not None:
        instance("executor", executor, Executor)
    where, libraries = run_arguments.device(device), run_arguments.libraries(custom_ops)
    with TimeLimit(timeout).running():
        pairs = ((inputs.sample(at) or f"sample {at + 1}", feeds) for at, feeds in enumerate(runs))
        if executor is None:
            observed = _observe(runnable, pairs, where, libraries, on_sample)
        else:
            observed = _in_parts(runnable, pairs, where, libraries, on_sample, executor)
        return _finite(observed, is_synthetic=inputs.is_synthetic)


def _finite(observations: Observed, *, is_synthetic: bool) -> Observed:
    """Drop values that were never finite; raise FeedError if none remains, or there was no sample."""
    if not observations.samples:
        raise FeedError("there is no sample to observe", remedy="give one with `samples`")
    finite = {name: extremes for name, extremes in observations.items() if not extremes.is_empty}
    if observations and not finite:
        problem = "no floating-point value of a run is finite"
        raise FeedError(problem, remedy="give other inputs with `samples`")
    return Observed(observations.model, observations.samples, finite, is_synthetic=is_synthetic)


def _observe(
    model: Runnable,
    samples: Iterable[tuple[str, Feeds]],
    device: Device,
    libraries: Libraries,
    on_sample: Callable[[int], object] | None = None,
) -> Observed:
    """Return the extremes of all values over the samples, even never finite ones; names are for errors."""
    ranges, count = dict[str, Extremes](), 0
    open_session = functools.cache(lambda: sessions.open_session(model, device, libraries))
    with light(model) as readable:
        runs = _ObservedRuns(readable, device, libraries)
        for where, feeds in samples:
            for inputs in feeds.feeds if isinstance(feeds, Steps) else [feeds]:
                _refuse_nan(where, inputs)
            for step in _steps(feeds, open_session):
                for name, extremes in runs.measure(where, step).items():
                    ranges[name] = ranges.get(name, NOTHING).join(extremes)
            count += 1
            if on_sample is not None:
                on_sample(count)
    return Observed(readable.fingerprint, count, ranges)


def _steps(feeds: Feeds, open_session: Callable[[], Any]) -> Iterator[Feeds]:
    """Yield the inputs of each step of a sequence, with the states of a run, or those of another sample."""
    if not isinstance(feeds, Steps):
        yield feeds
        return
    run = functools.partial(sessions.run_session, open_session())
    yield from (inputs for inputs, _ in feeds.unrolled(run))


def _refuse_nan(where: str, feeds: Feeds) -> None:
    for name, value in feeds.items():
        parts: list[Any] = value if isinstance(value, list) else [value]
        arrays = (part for part in parts if isinstance(part, np.ndarray) and metrics.is_float(part))
        if any(np.isnan(array).any() for array in arrays):
            raise FeedError(f"input '{name}' holds NaN", where=where, remedy="leave this sample out")


class _ObservedRuns:
    """The runs of a model, whose session is reopened when further values need element counts.

    The elements of all values are counted in the first COUNTED runs, afterwards those of values with an
    element outside the range of float16.
    """

    def __init__(self, model: LightModel, device: Device, libraries: Libraries) -> None:
        self._model = model
        self._device = device
        self._libraries = libraries
        self._session: Any = None
        self._rows: Sequence[ReducedRow] = ()
        self._runs = self._reopened = 0
        self._leaving: set[str] = set()

    def measure(self, where: str, feeds: Feeds) -> dict[str, Extremes]:
        """Return the extremes of the values that a run computes, by name.

        Raises ModelError, RunError and FeedError, at `where`.
        """
        if self._runs in (0, COUNTED):
            self._open()
        values, further = self._run(where, feeds)
        while further:
            self._leaving |= further
            self._reopened += 1
            self._open()
            values, further = self._run(where, feeds)
        self._runs += 1
        self._leaving |= {name for name, extremes in values.items() if extremes.beyond or extremes.not_finite}
        return values

    def _open(self) -> None:
        """Open a session; optimised except for the first runs, which count elements."""
        self._session = None  # released first: two sessions would take twice the memory
        opset = self._model.opset
        counts_all = self._runs < COUNTED or self._reopened > REOPENED

        def is_counted(name: str) -> bool:
            return opset >= reductions.SINCE_COUNTS and (counts_all or name in self._leaving)

        self._rows, proto, folder = self._model.edited(
            lambda copy: reductions.reduce_values(copy, is_counted)
        )
        options = self._options(folder, is_optimised=self._runs >= COUNTED)
        self._session = sessions.opened(proto, self._device, options)

    def _options(self, folder: Path | None, *, is_optimised: bool) -> Any:
        """Return session options for reducing each value right behind its producer."""
        runtime, options = sessions.onnxruntime(), sessions.session_options(self._libraries)
        levels = runtime.GraphOptimizationLevel
        # ORT_ENABLE_ALL gives convolutions a blocked channel layout, which each reduction reorders
        options.graph_optimization_level = (
            levels.ORT_ENABLE_EXTENDED if is_optimised else levels.ORT_DISABLE_ALL
        )
        options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_pattern = False  # it allocates again in the second run
        options.add_session_config_entry(_SPINNING, "0")  # reductions have one thread: others need not wait
        options.add_session_config_entry(sessions.NO_QUANTISED, "1")  # it has a DequantizeLinear per consumer
        if folder is not None:
            options.add_session_config_entry(sessions.DATA_FOLDER, str(folder))
        return options

    def _run(self, where: str, feeds: Feeds) -> tuple[dict[str, Extremes], set[str]]:
        """Return the extremes of one run, and the uncounted values that leave the range of float16."""
        outputs = sessions.run_session(self._session, feeds, where=where)
        values, further = dict[str, Extremes](), set[str]()
        for row, numbers in reductions.read_rows(self._rows, outputs.values()) if self._rows else ():
            extremes = row.extremes(*numbers)
            if self._model.opset >= reductions.SINCE_COUNTS and row.leaves_float16(*numbers):
                further.update(row.names)
            for name in row.names if extremes.samples else ():
                previous = values.get(name)  # from another branch of an If
                values[name] = extremes if previous is None else previous.join(extremes).in_one_run()
        return values, further


_SPINNING = "session.intra_op.allow_spinning"


def _in_parts(
    model: Runnable,
    samples: Iterator[tuple[str, Feeds]],
    device: Device,
    libraries: Libraries,
    on_sample: Callable[[int], object] | None,
    executor: Executor,
) -> Observed:
    """Observe the samples in parts by the workers of an executor; without samples, start none."""
    total: Observed | None = None
    with as_file(model) as file:
        parts = iter(lambda: list(itertools.islice(samples, PART)), [])
        for observations in executors.results(
            executor, _observe, ((file, part, device, libraries) for part in parts)
        ):
            total = observations if total is None else total.merge(observations)
            if on_sample is not None:
                on_sample(total.samples)
    return Observed("", 0, {}) if total is None else total
