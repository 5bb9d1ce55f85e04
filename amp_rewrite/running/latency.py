"""How long models take, beside each other: A B A B, so that whatever slows the machine slows them all."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from amp_rewrite.errors import FeedError, OptionError
from amp_rewrite.model import loading
from amp_rewrite.running import footprint, runners, sessions
from amp_rewrite.running.footprint import Footprint
from amp_rewrite.running.runners import Runner, Subject
from amp_rewrite.running.sessions import Device, Feeds

Clock = Callable[[], float]
"""Seconds that only ever grow."""

Round = tuple[float, ...]
"""Seconds of each model, in their order."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: `rounds` at most, and no new one after `seconds`; `warmup` rounds come before.

    FEWEST rounds are made however long they take, and warming up takes no more than a quarter of the
    seconds.
    """

    rounds: int = 200
    warmup: int = 10
    seconds: float = 20.0


FEWEST = 5
"""Percentiles of fewer rounds say nothing."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median over the rounds, and the interval in which it lies with a confidence of 90 %."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Latency:
    """What one model takes.

    `p50`, `p90` and `p99` are percentiles in milliseconds, `throughput` is runs a second, one after the
    other. `speedup` is the first model's time over this one's in the same round. `size` is the file with
    its external data, in bytes.
    """

    subject: Subject
    p50: float
    p90: float
    p99: float
    throughput: float
    speedup: Spread
    size: int
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class Bench:
    """Models beside each other; every speedup is against the first."""

    latencies: tuple[Latency, ...]
    device: Device
    rounds: int
    onnxruntime: str

    def title(self, latency: Latency) -> str:
        """What a model is called; on CUDA with whether it may use TF32."""
        subject = latency.subject
        tf32 = f" (TF32 {'on' if subject.tf32 else 'off'})" if self.device is Device.CUDA else ""
        return f"{subject.name}{tf32}"

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "provider": self.device.value,
            "onnxruntime": self.onnxruntime,
            "rounds": self.rounds,
            "models": [_plain(latency) for latency in self.latencies],
        }


def _plain(latency: Latency) -> dict[str, Any]:
    plain = asdict(latency)
    subject, foot = plain.pop("subject"), plain.pop("footprint")
    profile = foot.pop("profile")
    profile["cpu_operators"] = dict(profile["cpu_operators"])
    return {**subject, "path": str(subject["path"]), **plain, **foot, **profile}


def device_for(provider: str | None) -> Device:
    """The device of that name, `cuda` or `cpu`; the best there is for None. Raises OptionError."""
    best = sessions.best_device()
    if provider is None:
        return best
    asked = Device(provider.upper())
    if asked is Device.CUDA and best is not Device.CUDA:
        raise OptionError(
            "CUDA does not work here", remedy="install 'amp-rewrite[gpu]' on a machine with CUDA, or say cpu"
        )
    return asked


def measure(
    subjects: Sequence[Subject], samples: Iterable[Feeds], device: Device, effort: Effort | None = None
) -> Bench:
    """Times models on the same inputs, one sample a round, in turn.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError when a run fails.
    """
    feeds = list(samples)
    if not feeds:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    sizes = [loading.load(subject.path).size for subject in subjects]
    feet = [footprint.take(subject, device, feeds[0]) for subject in subjects]
    rounds = timed(subjects, feeds, device, effort or Effort())
    columns = list(zip(*rounds, strict=True))
    latencies = (
        _latency(subject, seconds, columns[0], size, foot)
        for subject, seconds, size, foot in zip(subjects, columns, sizes, feet, strict=True)
    )
    version = sessions.onnxruntime().__version__
    return Bench(tuple(latencies), device, len(rounds), version)


def timed(
    subjects: Sequence[Subject], samples: Sequence[Feeds], device: Device, effort: Effort
) -> list[Round]:
    """The seconds alone, of models that are all open at once in this process; raises as `measure` does."""

    def measured(options: Any) -> list[Round]:
        return interleave([_in_turn(subject, device, samples, options) for subject in subjects], effort)

    return sessions.stopping(measured)  # all at once: what it takes to stop a run is not to be timed


def _in_turn(subject: Subject, device: Device, samples: Sequence[Feeds], options: Any) -> Runner:
    """Runs the model on the first sample, then on the second, and so on in a circle."""
    session = runners.open_subject(subject, device)
    given = (runners.runner(session, feeds, device, subject.path, options) for feeds in samples)
    turns = itertools.cycle(list(given))

    def run() -> None:
        next(turns)()

    return run


def interleave(turns: Sequence[Runner], effort: Effort, clock: Clock = time.perf_counter) -> list[Round]:
    """Runs all in turn, round by round, after warming up: A B A B; the seconds of each."""
    one = partial(_round, turns, clock)
    _repeat(one, effort.warmup, 1, effort.seconds / 4, clock)
    return _repeat(one, effort.rounds, FEWEST, effort.seconds, clock)


def _round(turns: Sequence[Runner], clock: Clock) -> Round:
    return tuple(_seconds(run, clock) for run in turns)


def _seconds(run: Runner, clock: Clock) -> float:
    start = clock()
    run()
    return clock() - start


def _repeat(one: Callable[[], Round], most: int, fewest: int, seconds: float, clock: Clock) -> list[Round]:
    end, made = clock() + seconds, list[Round]()
    while len(made) < most and (len(made) < fewest or clock() < end):
        made.append(one())
    return made


def _latency(subject: Subject, seconds: Round, first: Round, size: int, foot: Footprint) -> Latency:
    p50, p90, p99 = (float(p) * 1000 for p in np.percentile(seconds, (50, 90, 99)))
    return Latency(
        subject=subject,
        p50=p50,
        p90=p90,
        p99=p99,
        throughput=len(seconds) / sum(seconds),
        speedup=speedup(first, seconds),
        size=size,
        footprint=foot,
    )


def speedup(first: Round, other: Round) -> Spread:
    """How many times as fast `other` is as `first`, round by round.

    The interval is a bootstrap's (Efron 1979), from the same random numbers every time.
    """
    ratios = np.asarray(first) / np.asarray(other)
    drawn = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = (float(p) for p in np.percentile(np.median(drawn, axis=1), (5, 95)))
    return Spread(float(np.median(ratios)), low, high)


_RESAMPLES = 1000
