"""Run times of several models, in interleaved runs (A B A B), so that a disturbance affects all of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from amp_rewrite.errors import FeedError
from amp_rewrite.model import loading
from amp_rewrite.running import footprint, prepared_runs, sessions
from amp_rewrite.running.footprint import Footprint
from amp_rewrite.running.prepared_runs import PreparedRun, TimedModel
from amp_rewrite.running.sessions import Device, Feeds

Clock = Callable[[], float]
"""A monotonic clock, in seconds."""

Round = tuple[float, ...]
"""Seconds for one run of each model, in their order."""


@dataclass(frozen=True, slots=True)
class TimingBudget:
    """How long to measure: at most `rounds`, none starting after `seconds`, with `warmup` rounds before.

    At least FEWEST rounds run however long they take. No warm-up round starts after a quarter of `seconds`.
    """

    rounds: int = 200
    warmup: int = 10
    seconds: float = 20.0


FEWEST = 5
"""Percentiles of fewer rounds are meaningless."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """The median over the rounds, and the bounds of its 90 % confidence interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Latency:
    """The run time and footprint of one model.

    `p50`, `p90` and `p99` are percentiles in milliseconds, `throughput` is sequential runs per second.
    `speedup` is the first model's time divided by this one's in the same round. `size` is that of the file
    and its external data, in bytes.
    """

    model: TimedModel
    p50: float
    p90: float
    p99: float
    throughput: float
    speedup: Speedup
    size: int
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class Bench:
    """The measurements of several models; every speedup is relative to the first."""

    latencies: tuple[Latency, ...]
    device: Device
    rounds: int
    onnxruntime: str

    def title(self, latency: Latency) -> str:
        """The display name of a model; on CUDA with whether it may use TF32."""
        tf32 = f" (TF32 {'on' if latency.model.tf32 else 'off'})" if self.device is Device.CUDA else ""
        return f"{latency.model.name}{tf32}"

    def to_json(self) -> dict[str, Any]:
        """This as JSON data."""
        return {
            "provider": self.device.value,
            "onnxruntime": self.onnxruntime,
            "rounds": self.rounds,
            "models": [_to_json(latency) for latency in self.latencies],
        }


def _to_json(latency: Latency) -> dict[str, Any]:
    fields = asdict(latency)
    model, cost = fields.pop("model"), fields.pop("footprint")
    profile = cost.pop("profile")
    profile["cpu_operators"] = dict(profile["cpu_operators"])
    return {**model, "path": str(model["path"]), **fields, **cost, **profile}


def measure(
    models: Sequence[TimedModel], samples: Iterable[Feeds], device: Device, budget: TimingBudget | None = None
) -> Bench:
    """Interleaves runs of the models on the same inputs, one sample per round.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError if a run fails.
    """
    feeds = list(samples)
    if not feeds:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    sizes = [loading.load(model.path).size for model in models]
    footprints = [footprint.measure(model, device, feeds[0]) for model in models]
    rounds = time_rounds(models, feeds, device, budget or TimingBudget())
    columns = list(zip(*rounds, strict=True))
    rows = zip(models, columns, sizes, footprints, strict=True)
    latencies = tuple(_latency(columns[0], *row) for row in rows)
    return Bench(latencies, device, len(rounds), sessions.onnxruntime().__version__)


def time_rounds(
    models: Sequence[TimedModel], samples: Sequence[Feeds], device: Device, budget: TimingBudget
) -> list[Round]:
    """The seconds of each round, with all models open in this process; raises as `measure` does."""

    def measured(options: Any) -> list[Round]:
        return interleave([_cycling(model, device, samples, options) for model in models], budget)

    return sessions.run_interruptible(measured)  # once for all runs: its overhead must not be timed


def _cycling(model: TimedModel, device: Device, samples: Sequence[Feeds], options: Any) -> PreparedRun:
    """A function that runs the model on the next sample at each call, starting over after the last one."""
    session = prepared_runs.open_timed_session(model, device)
    runs = [prepared_runs.prepare(session, feeds, device, model.path, options) for feeds in samples]
    cycle = itertools.cycle(runs)

    def run_next() -> None:
        next(cycle)()

    return run_next


def interleave(
    runs: Sequence[PreparedRun], budget: TimingBudget, clock: Clock = time.perf_counter
) -> list[Round]:
    """Calls all of `runs` in turn, round by round (A B A B), after a warm-up; returns the seconds of each."""

    def seconds(run: PreparedRun) -> float:
        start = clock()
        run()
        return clock() - start

    def repeat(most: int, fewest: int, limit: float) -> list[Round]:
        end, rounds = clock() + limit, list[Round]()
        while len(rounds) < most and (len(rounds) < fewest or clock() < end):
            rounds.append(tuple(map(seconds, runs)))
        return rounds

    repeat(budget.warmup, 1, budget.seconds / 4)
    return repeat(budget.rounds, FEWEST, budget.seconds)


def _latency(first: Round, model: TimedModel, seconds: Round, size: int, cost: Footprint) -> Latency:
    p50, p90, p99 = (float(p) * 1000 for p in np.percentile(seconds, (50, 90, 99)))
    throughput = len(seconds) / sum(seconds)
    return Latency(model, p50, p90, p99, throughput, speedup(first, seconds), size, cost)


def speedup(first: Round, other: Round) -> Speedup:
    """How many times as fast `other` is as `first`, from the ratios of each round.

    The interval is a bootstrap's (Efron 1979) with a fixed seed.
    """
    ratios = np.asarray(first) / np.asarray(other)
    drawn = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = (float(p) for p in np.percentile(np.median(drawn, axis=1), (5, 95)))
    return Speedup(float(np.median(ratios)), low, high)


_RESAMPLES = 1000
