"""Sensitivity: how far the outputs move when a part of the model is rounded, measured by switches.

A repair, a search, and the order of nodes after a comparison read it.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import FeedError, ModelError
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy import node_patterns
from amp_rewrite.process import executors
from amp_rewrite.running import comparison, emulation, metrics, sequences, sessions
from amp_rewrite.running.emulation import SwitchedModel
from amp_rewrite.running.instrumented_model import as_file
from amp_rewrite.running.metrics import Moments, Spread
from amp_rewrite.running.sessions import LARGE, Device, Feeds, Libraries, Runnable

SquaredError = Callable[[Sequence[int]], float]
"""A function from rounded parts to the squared error of the outputs, which may be infinite."""


class Sensitivities:
    """The squared errors that rounding each of `count` parts adds, by splitting groups of parts.

    Squared errors add up: that of a group is the sum over its halves, so that one run measures both. `errors`
    are those of the parts, of which the parts of a group have the same.
    """

    def __init__(self, measure: SquaredError, count: int) -> None:
        self._measure, self.errors = measure, [0.0] * count
        self._groups: list[tuple[float, tuple[int, ...]]] = []
        if count:
            self._add(tuple(range(count)), measure(range(count)))

    def refine(self, fits: float, may_go_on: Callable[[], bool]) -> None:
        """Split the largest group until all but single parts have a total of at most `fits`, or the runs are
        used up. One that overflows has an infinite error, and is split to the end.
        """
        while self._groups and may_go_on() and -sum(error for error, _ in self._groups) > fits:
            error, group = heapq.heappop(self._groups)
            first, second = group[: len(group) // 2], group[len(group) // 2 :]
            if first:
                left = self._measure(first)
                right = -error - left
                is_told = math.isfinite(error) and right > _TOLD * -error
                self._add(first, left)
                self._add(second, right if is_told else self._measure(second))

    def _add(self, group: tuple[int, ...], error: float) -> None:
        for part in group:
            self.errors[part] = error / len(group)
        heapq.heappush(self._groups, (-error, group))


_TOLD = 0.1
"""The share of a group's error above which the difference is accurate: sums hold within a tenth."""


# The error that rounding at each node of a half model adds.

MOST_RUNS = 64
"""The most runs; afterwards values that are not measured separately share the error of their group."""

_FITS = 0.01
"""The share of the squared error that may belong to values not measured separately."""


def by_node(
    original: Runnable, rewritten: Runnable, feeds: Feeds, libraries: Libraries = ()
) -> Mapping[str, float] | None:
    """Return the output error (Metrics.error) that rounding at each node of the rewritten model adds, by
    name; rounding in bodies counts for their node. Infinite if an output becomes non-finite. Rounding of
    initializers is not included. Runs on the CPU with emulated half; None for a model that is too large or
    does not run that way.
    """
    model = emulation.switched_emulation(rewritten)
    if model.loaded.size > LARGE:
        return None
    try:
        with opened(original, model, (feeds,), 1.0, libraries=libraries) as session:
            found = Sensitivities(session.above_noise, len(model.values))
            whole = sum(found.errors)
            fits = whole * _FITS if math.isfinite(whole) else 0.0
            found.refine(fits, lambda: session.runs < MOST_RUNS)
    except (ModelError, FeedError):
        return None
    squared: defaultdict[str, float] = defaultdict(float)
    owners = _owners(model.loaded.model.graph)
    for value, error in zip(model.values, found.errors, strict=True):
        if node := owners.get(graph_of(value), value.producer()):
            squared[node_patterns.pinned_as(node)] += error
    return {name: math.sqrt(error) for name, error in squared.items()}


def _owners(root: ir.Graph) -> dict[ir.Graph, ir.Node]:
    """Map all nested graphs to the node of the main graph that has them."""
    return {inner: node for node in root for body in control_flow.bodies(node) for inner in graphs(body)}


# Runs of a model with switches: the output error for any set of rounded places.


@dataclass(frozen=True, slots=True)
class Expected:
    """A sample, the float32 outputs of its steps, and the spreads of the float ones; each array of a sequence
    or map counts as an output.
    """

    feeds: Feeds
    outputs: Sequence[Mapping[str, NDArray[Any]]]
    spreads: Mapping[str, Spread]

    def error(self, session: Any, switches: Mapping[str, NDArray[np.bool_]]) -> float:
        """Run a session with these switches, and return the error of the worst output.

        That of a float output is the error of a verdict: the RMS of the difference over the spread, at least
        metrics.SMALLEST; of others, it is the share of different values.
        """
        sample = sequences.changed(self.feeds, lambda step: {**step, **switches})
        pairs = zip(self.outputs, _arrays(sessions.run_session(session, sample)), strict=True)
        errors = (
            _error(self.spreads.get(name), value, actual[name])
            for expected, actual in pairs
            for name, value in expected.items()
            if name in actual
        )
        return max(errors, default=0.0)


def _error(spread: Spread | None, reference: NDArray[Any], result: NDArray[Any]) -> float:
    if reference.shape != result.shape:
        return math.inf
    if spread is None:
        return float(np.mean(reference != result)) if reference.size else 0.0
    finite = np.isfinite(reference)
    if not np.isfinite(result[finite]).all():
        return math.inf
    return spread.error(metrics.differences(reference, result, (spread.axis,)), metrics.SMALLEST)[0]


def _expect(samples: Sequence[Feeds], outputs: Iterable[Mapping[str, Any]], apart: int) -> list[Expected]:
    """Return the samples with their outputs; the last ones, `apart`, have a spread each."""
    steps = [_arrays(each) for each in outputs]
    together = len(samples) - apart
    common = _spreads(step for each in steps[:together] for step in each)
    spreads = [common] * together + [_spreads(each) for each in steps[together:]]
    return [Expected(*each) for each in zip(samples, steps, spreads, strict=True)]


def _spreads(steps: Iterable[Mapping[str, NDArray[Any]]]) -> dict[str, Spread]:
    """Return the spread of each float output over these steps."""
    moments: defaultdict[str, list[Moments]] = defaultdict(list)
    for step in steps:
        for name, value in step.items():
            if metrics.is_float(value):
                moments[name].append(metrics.moments(value))
    return {name: metrics.spread(samples) for name, samples in moments.items()}


def _arrays(outputs: Mapping[str, Any]) -> list[dict[str, NDArray[Any]]]:
    """Return the outputs of each step by name."""
    return [dict(comparison.arrays(step)) for step in sequences.by_step(outputs)]


class SwitchedSession:
    """A cache of measured errors by what is rounded; `runs` counts the measurements, on all samples each.

    `errors` returns the error of each sample for a vector of `count` switches; `bound` is that of the target.
    """

    def __init__(
        self, errors: Callable[[NDArray[np.bool_]], Iterable[float]], count: int, bound: float
    ) -> None:
        self._errors, self._count, self._bound = errors, count, bound
        self.runs = 0
        self._known: dict[tuple[int, ...], float] = {}

    def squared(self, switches: Iterable[int]) -> float:
        """Return the squared error of the worst sample with these on, over the square of the target."""
        key = tuple(sorted(switches))
        if key not in self._known:
            self.runs += 1
            vector = np.zeros(self._count, bool)
            vector[list(key)] = True
            self._known[key] = (max(self._errors(vector), default=0.0) / self._bound) ** 2
        return self._known[key]

    def above_noise(self, switches: Iterable[int]) -> float:
        """Return the squared error above that of float32."""
        return max(self.squared(switches) - self.squared(()), 0.0)


@contextlib.contextmanager
def opened(
    original: Runnable,
    model: SwitchedModel,
    samples: Sequence[Feeds],
    bound: float,
    executor: Executor | None = None,
    libraries: Libraries = (),
    apart: int = 0,
) -> Generator[SwitchedSession]:
    """Yield a CPU session, or one for each worker of an executor with a sample per task, for use within the
    context. Computes the outputs of the original first. The last samples, `apart`, are judged each by itself.

    Raises ModelError and RunError if the original does not run.
    """
    with emulation.reference(original, Device.CPU, libraries) as baseline:
        outputs = [
            sessions.run_session(baseline.session, sample, where=f"samples[{at}]")
            for at, sample in enumerate(samples)
        ]
    expected = _expect(samples, outputs, apart)

    def measure_here(vector: NDArray[np.bool_]) -> Iterable[float]:
        return (each.error(session, {model.switches: vector}) for each in expected)

    def measure_by_workers(vector: NDArray[np.bool_]) -> Iterable[float]:
        tasks = ((file, libraries, each, {model.switches: vector}) for each in expected)
        return executors.results(executor, _measure_in_worker, tasks)

    with emulation.runnable(model.loaded) as runnable:
        if executor is None:
            session = sessions.open_session(runnable, Device.CPU, libraries)
            yield SwitchedSession(measure_here, len(model.values), bound)
        else:
            with as_file(runnable) as file:
                yield SwitchedSession(measure_by_workers, len(model.values), bound)


def _measure_in_worker(
    model: Path, libraries: Libraries, expected: Expected, switches: Mapping[str, NDArray[np.bool_]]
) -> float:
    return expected.error(_session(model, libraries), switches)


@functools.lru_cache(maxsize=1)
def _session(model: Path, libraries: Libraries) -> Any:
    return sessions.open_session(model, Device.CPU, libraries)
