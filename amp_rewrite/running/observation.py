"""Runs of the float32 model that observe the magnitudes of all its values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from amp_rewrite.analysis.observed import Magnitudes, Observed, magnitudes
from amp_rewrite.errors import FeedError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import metrics, run_arguments
from amp_rewrite.running.intermediate_values import InstrumentedModel
from amp_rewrite.running.run_arguments import Samples
from amp_rewrite.running.sessions import Device, Feeds, Runnable


def observe(
    model: ModelSource,
    samples: Samples,
    *,
    device: Device | str | None = None,
    timeout: float | None = None,
) -> Observed:
    """The magnitudes of the float inputs and of all float values of the main graph, over all samples.

    The model can be of any kind that `rewrite` takes; the result is for its argument `seen`. A sample is a
    mapping from input names to arrays; `samples` is one sample or an iterable of samples. `device` is "cuda"
    or "cpu"; by default CUDA if it works. Values in control-flow bodies are not observed.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError if the model does not run, or the
    model or a sample is invalid, FeedError if no float value is finite and non-zero, OutputError if the
    folder of a model with external data is not writable, OptionError for other invalid arguments, and
    TimeLimitError after `timeout` seconds.
    """
    runnable, runs = run_arguments.model("model", model), run_arguments.samples(samples)
    with TimeLimit(timeout).running():
        return _observe(runnable, runs, run_arguments.device(device))


def _observe(model: Runnable, samples: Iterator[Feeds], device: Device) -> Observed:
    instrumented = InstrumentedModel(model, device)
    found: dict[str, Magnitudes | None] = {}
    first = next(samples, None)
    if first is None:
        raise FeedError("there is no sample to observe", remedy="give one with `samples`")
    for feeds in itertools.chain([first], samples):
        for values in itertools.chain([feeds], instrumented.chunks(instrumented.value_names, feeds)):
            for name, value in values.items():
                if isinstance(value, np.ndarray) and metrics.is_float(value):
                    new, old = magnitudes(value), found.get(name)
                    found[name] = new.join(old) if new and old else new or old
    known = {name: seen for name, seen in found.items() if seen is not None}
    if found and not known:
        problem = "no floating-point value of a run is finite and non-zero"
        raise FeedError(problem, remedy="give other inputs with `samples`")
    return known
