"""Runs of the float32 model that observe the extremes of all its values, sample by sample."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path

import onnx

from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.arguments import PathLike, function, instance
from amp_rewrite.errors import FeedError
from amp_rewrite.model import loading, writing
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.options import ExternalData
from amp_rewrite.process import executors
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running import run_arguments
from amp_rewrite.running.calibration_runs import CalibrationRuns, Named
from amp_rewrite.running.inputs.feeds import FROM_CALLER, InputSource
from amp_rewrite.running.light_model import light
from amp_rewrite.running.measured_model import MeasuredModel
from amp_rewrite.running.run_arguments import Samples
from amp_rewrite.running.sessions import Device, Libraries, Runnable

PART = 8
"""The samples that one task of an executor has."""


def observe(
    model: ModelSource,
    samples: Samples,
    *,
    device: Device | str | None = None,
    timeout: float | None = None,
    inputs: InputSource = FROM_CALLER,
    on_sample: Callable[[int], object] | None = None,
    executor: Executor | None = None,
    custom_ops: PathLike | Iterable[PathLike] = (),
) -> Observed:
    """The extremes of all float32 values of a model over all samples, those in If, Loop and Scan bodies too.

    The model can be of any kind that `rewrite` takes; the result is for its argument `seen`. A sample is a
    mapping from input names to arrays; `samples` is one sample or an iterable of samples, of which one or
    two are held at a time, and `inputs` their source. Values are reduced in each run, and not kept.
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
    runnable, runs = run_arguments.model("model", model), run_arguments.samples(samples)
    function("on_sample", on_sample)
    if executor is not None:
        instance("executor", executor, Executor)
    where, libraries = run_arguments.device(device), run_arguments.libraries(custom_ops)
    with TimeLimit(timeout).running():
        named = ((inputs.sample(at) or f"sample {at + 1}", feeds) for at, feeds in enumerate(runs))
        if executor is None:
            return _finite(_observe(runnable, named, where, libraries, on_sample))
        return _finite(_in_parts(runnable, named, where, libraries, on_sample, executor))


def _finite(found: Observed) -> Observed:
    """What was seen, without values that were never finite; FeedError where nothing is left."""
    if not found.samples:
        raise FeedError("there is no sample to observe", remedy="give one with `samples`")
    finite = {name: extremes for name, extremes in found.items() if not extremes.is_empty}
    if found and not finite:
        problem = "no floating-point value of a run is finite"
        raise FeedError(problem, remedy="give other inputs with `samples`")
    return Observed(found.model, found.samples, finite)


def _observe(
    model: Runnable,
    samples: Iterable[Named],
    device: Device,
    libraries: Libraries,
    on_sample: Callable[[int], object] | None = None,
) -> Observed:
    """The extremes of all values in all samples, those that were never finite too."""
    found, count = dict[str, Extremes](), 0
    with light(model) as readable:
        runs = CalibrationRuns(MeasuredModel(readable, device, libraries))
        left = iter(samples)
        while group := runs.drawn(left):
            for measurement in runs.measure(group):
                count += 1
                _join(found, measurement.extremes.items())
                if on_sample is not None:
                    on_sample(count)
        for tally in runs.tallies:
            _join(found, tally.extremes())
    return Observed(readable.fingerprint, count, found)


def _join(found: dict[str, Extremes], further: Iterable[tuple[str, Extremes]]) -> None:
    for name, extremes in further:
        found[name] = found.get(name, NOTHING).join(extremes)


def _in_parts(
    model: Runnable,
    samples: Iterator[Named],
    device: Device,
    libraries: Libraries,
    on_sample: Callable[[int], object] | None,
    executor: Executor,
) -> Observed:
    """The same by the workers of an executor; of no sample, by none."""
    seen: Observed | None = None
    with _as_file(model) as file:
        parts = iter(lambda: list(itertools.islice(samples, PART)), [])
        for found in executors.results(
            executor, _observe, ((file, part, device, libraries) for part in parts)
        ):
            seen = found if seen is None else seen.merge(found)
            if on_sample is not None:
                on_sample(seen.samples)
    return Observed("", 0, {}) if seen is None else seen


@contextlib.contextmanager
def _as_file(model: Runnable) -> Generator[Path]:
    """The path of a model; one in memory is written once, for all tasks."""
    if not isinstance(model, onnx.ModelProto):
        yield Path(model).absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        writing.save(loading.load(model), path, ExternalData())
        yield path
