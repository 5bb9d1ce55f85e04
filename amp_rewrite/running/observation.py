"""A run of the float32 model that looks at every value: how large, and how small, its numbers get."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from amp_rewrite.analysis.observed import Magnitudes, Observed, magnitudes
from amp_rewrite.errors import FeedError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import metrics
from amp_rewrite.running.inputs import given
from amp_rewrite.running.inputs.given import Samples
from amp_rewrite.running.intermediate_values import Inside
from amp_rewrite.running.sessions import Device, Feeds, Runnable


def observe(
    model: ModelSource,
    samples: Samples,
    *,
    device: Device | str | None = None,
    timeout: float | None = None,
) -> Observed:
    """The magnitudes of the float inputs and of all floats that the main graph makes, over all samples.

    The model may be of any kind that `rewrite` takes; the result is for its argument `seen`. A sample is a
    mapping from input names to arrays; `samples` is one of them, or any iterable of them. `device` is "cuda"
    or "cpu"; where it is not given, CUDA where it works. Bodies of control flow are not looked into.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError when the model does not run or
    what is given is no model or no sample, FeedError where no float is finite and not zero, OutputError where
    the folder of a model with external data cannot be written to, OptionError for other arguments, and
    TimeLimitError after `timeout` seconds.
    """
    runnable, runs = given.model("model", model), given.samples(samples)
    with TimeLimit(timeout).running():
        return _observe(runnable, runs, given.device(device))


def _observe(model: Runnable, runs: Iterator[Feeds], device: Device) -> Observed:
    inside = Inside(model, device)
    found: dict[str, Magnitudes | None] = {}
    first = next(runs, None)
    if first is None:
        raise FeedError("there is no sample to look at", remedy="give one with `samples`")
    for feeds in itertools.chain([first], runs):
        for name, seen in _seen(inside, feeds):
            before = found.get(name)
            found[name] = seen.join(before) if seen and before else seen or before
    known = {name: seen for name, seen in found.items() if seen is not None}
    if found and not known:
        raise FeedError("no float of a run is finite and not zero", remedy="give other inputs with `samples`")
    return known


def _seen(inside: Inside, feeds: Feeds) -> Iterator[tuple[str, Magnitudes | None]]:
    for values in itertools.chain([feeds], inside.chunks(inside.made, feeds)):
        for name, value in values.items():
            if _is_floats(value):
                yield name, magnitudes(value)


def _is_floats(value: Any) -> bool:
    return isinstance(value, np.ndarray) and metrics.is_float(value)
