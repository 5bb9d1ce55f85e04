"""Runs of the float32 model that observe the extremes of all its values, one sample at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.arguments import function
from amp_rewrite.errors import FeedError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running import metrics, run_arguments
from amp_rewrite.running.inputs.input_source import FROM_CALLER, InputSource
from amp_rewrite.running.light_model import light
from amp_rewrite.running.measured_model import MeasuredModel, Measurement
from amp_rewrite.running.reductions import Treatment
from amp_rewrite.running.run_arguments import Samples
from amp_rewrite.running.sessions import Device, Feeds, Runnable

COUNTED = 2
"""The samples in which the elements of all values are counted, which takes longer than to find extremes;
later on only those of values that have elements which are not finite, or beyond float16.
"""

_REOPENED = 4
"""How often a session is opened again for further values to count; then the elements of all are counted."""


def observe(
    model: ModelSource,
    samples: Samples,
    *,
    device: Device | str | None = None,
    timeout: float | None = None,
    inputs: InputSource = FROM_CALLER,
    on_sample: Callable[[int], object] | None = None,
) -> Observed:
    """The extremes of all float32 values of a model over all samples, those in If, Loop and Scan bodies too.

    The model can be of any kind that `rewrite` takes; the result is for its argument `seen`. A sample is a
    mapping from input names to arrays; `samples` is one sample or an iterable of samples, of which one is
    held at a time, and `inputs` their source. Values are reduced within the run, and not kept.
    `on_sample` is called after each sample with the number of samples so far. `device` is "cuda" or "cpu"; by
    default CUDA if it works. Elements are counted in the first two samples (COUNTED), and from then on of
    values that have elements which are not finite, or beyond float16; within runs at opset 9 or later.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError if the model does not run, or the
    model or a sample is invalid or holds NaN, FeedError if there is no sample, or if no float value is
    finite, OptionError for other invalid arguments, and TimeLimitError after `timeout` seconds.
    """
    runnable, runs = run_arguments.model("model", model), run_arguments.samples(samples)
    function("on_sample", on_sample)
    where = run_arguments.device(device)
    with TimeLimit(timeout).running():
        return _observe(runnable, runs, where, inputs, on_sample)


def _observe(
    model: Runnable,
    samples: Iterator[Feeds],
    device: Device,
    inputs: InputSource,
    on_sample: Callable[[int], object] | None,
) -> Observed:
    with light(model) as readable:
        found, count = _seen(_Runs(MeasuredModel(readable, device)), samples, inputs, on_sample)
    if not count:
        raise FeedError("there is no sample to observe", remedy="give one with `samples`")
    finite = {name: extremes for name, extremes in found.items() if not extremes.is_empty}
    if found and not finite:
        problem = "no floating-point value of a run is finite"
        raise FeedError(problem, remedy="give other inputs with `samples`")
    return Observed(readable.fingerprint, count, finite)


def _seen(
    runs: _Runs, samples: Iterator[Feeds], inputs: InputSource, on_sample: Callable[[int], object] | None
) -> tuple[dict[str, Extremes], int]:
    """The extremes of all values in all samples, and the number of these."""
    found, count = dict[str, Extremes](), 0
    for count, feeds in enumerate(samples, 1):
        where = inputs.sample(count - 1) or f"sample {count}"
        _refuse_nan(feeds, where)
        for name, extremes in runs.measure(feeds, where).extremes.items():
            found[name] = found.get(name, NOTHING).join(extremes)
        if on_sample is not None:
            on_sample(count)
    return found, count


class _Runs:
    """The runs of a model, whose session is opened again when values are to be treated otherwise."""

    def __init__(self, model: MeasuredModel) -> None:
        self._model = model
        self._done = 0
        self._opened = 0
        self._counted: set[str] = set()

    def measure(self, feeds: Feeds, where: str) -> Measurement:
        """What the run on a sample shows; a second one, if elements must be counted after all."""
        if self._done in (0, COUNTED):
            self._open(counts=self._done == 0)
        self._done += 1
        found = self._model.run(feeds, where, counts=self._done <= COUNTED)
        self._counted.update(name for name, seen in found.extremes.items() if seen.beyond or seen.not_finite)
        if self._model.can_count and not found.uncounted <= self._counted:
            self._counted |= found.uncounted
            self._opened += 1
            self._open(counts=self._opened >= _REOPENED)
            found = self._model.run(feeds, where, counts=False)
        return found

    def _open(self, *, counts: bool) -> None:
        """Opens a session in which elements are counted: of all values, or of those that leave float16."""
        can_count = self._model.can_count

        def treat(name: str) -> Treatment:
            return Treatment.COUNTED if can_count and (counts or name in self._counted) else Treatment.REDUCED

        self._model.open(treat, optimised=not counts)


def _refuse_nan(feeds: Feeds, where: str) -> None:
    for name, value in feeds.items():
        parts: list[Any] = value if isinstance(value, list) else [value]
        arrays = (part for part in parts if isinstance(part, np.ndarray) and metrics.is_float(part))
        if any(np.isnan(array).any() for array in arrays):
            raise FeedError(f"input '{name}' holds NaN", where=where, remedy="leave this sample out")
