"""Run times of several models, in interleaved runs (A B A B), so that a disturbance affects all of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amp_rewrite.errors import FeedError
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device, Feeds, Libraries

PreparedRun = Callable[[], Any]
"""A function that runs a model once, and returns when the outputs are complete."""


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A model to time: `name` is for display, `tf32` lets CUDA round float32 products to TF32, and
    `libraries` are those of custom operators.
    """

    name: str
    path: Path
    tf32: bool = False
    libraries: Libraries = ()


def open_timed_session(model: TimedModel, device: Device) -> Any:
    """Open a session; raise ModelError if onnxruntime rejects the model."""
    options = sessions.session_options(model.libraries)
    options.add_session_config_entry(*_STOP_SPINNING)
    return sessions.create(str(model.path), options, device, where=model.path, tf32=model.tf32)


_STOP_SPINNING = ("session.force_spinning_stop", "1")
"""Worker threads stop spinning at the end of a run, and leave the processor to the next model."""


def prepare(
    session: Any, feeds: Feeds, device: Device, where: str | Path = "", options: Any = None
) -> PreparedRun:
    """Return a function that runs a session on these inputs, and raises RunError at `where` on failure.

    Tensors are bound once, so that on CUDA they are on the device if the model reads them there, and the
    outputs stay on it. Other inputs are handed over at each run. `options` are onnxruntime's RunOptions.
    """
    types = {entry.name: entry.type for entry in session.get_inputs()}
    arrays = {n: sessions.to_input_type(value, types[n]) for n, value in feeds.items() if n in types}
    entries = (*session.get_inputs(), *session.get_outputs())
    with sessions.run_errors(where):
        if all(entry.type.startswith("tensor(") and entry.type != "tensor(string)" for entry in entries):
            run = partial(session.run_with_iobinding, bind(session, arrays, device))
        else:
            run = partial(session.run, None, arrays)

    def run_once(_shared: Feeds = arrays) -> None:  # OrtValues share the memory of arrays, which must live
        with sessions.run_errors(where):
            run(options)

    return run_once


def bind(session: Any, arrays: Feeds, device: Device) -> Any:
    """Return an IOBinding; onnxruntime copies a bound input once, to the device of its consumers."""
    binding = session.io_binding()
    for entry in session.get_inputs():
        if entry.name in arrays:
            value = sessions.to_ort_value(arrays[entry.name], entry.type)
            binding.bind_ortvalue_input(entry.name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, device.value.lower())
    binding.synchronize_inputs()
    return binding


Round = tuple[float, ...]
"""Seconds for one run of each model, in their order."""


WARMUP, FEWEST, MOST = 10, 5, 200
"""The rounds of the warm-up, and the fewest and the most that are measured."""

SECONDS = 20.0
"""How long a measurement takes by default."""


class Speedup(NamedTuple):
    """The median over the rounds, and the bounds of its 90 % confidence interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bench:
    """The seconds of several models in each round; every speedup is relative to the first."""

    models: Sequence[TimedModel]
    rounds: Sequence[Round]
    device: Device
    onnxruntime: str

    def title(self, model: TimedModel) -> str:
        """Return the display name of a model; on CUDA with its TF32 setting."""
        tf32 = f" (TF32 {'on' if model.tf32 else 'off'})" if self.device is Device.CUDA else ""
        return f"{model.name}{tf32}"

    def figures(self) -> Iterator[tuple[TimedModel, float, Speedup]]:
        """Yield each model with its median in milliseconds, and its speedup."""
        columns = list(zip(*self.rounds, strict=True))
        for model, column in zip(self.models, columns, strict=True):
            yield model, float(np.median(column)) * 1000, speedup(columns[0], column)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data."""
        models = [
            {
                "name": model.name,
                "path": str(model.path),
                "tf32": model.tf32,
                "libraries": [str(path) for path in model.libraries],
                "p50": median,
                "speedup": ratio._asdict(),
            }
            for model, median, ratio in self.figures()
        ]
        own = {"provider": self.device.value, "onnxruntime": self.onnxruntime, "rounds": len(self.rounds)}
        return {**own, "models": models}


def measure(
    models: Sequence[TimedModel], samples: Iterable[Feeds], device: Device, seconds: float = SECONDS
) -> Bench:
    """Interleave runs of the models on the same inputs, one sample per round, for so many seconds.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError if a run fails.
    """
    feeds = list(samples)
    if not feeds:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    for model in models:
        sessions.check_model(model.name, model.path)  # onnxruntime waits for a pipe
    rounds = time_rounds(models, feeds, device, seconds)
    return Bench(models, rounds, device, sessions.onnxruntime().__version__)


def time_rounds(
    models: Sequence[TimedModel], samples: Sequence[Feeds], device: Device, seconds: float
) -> list[Round]:
    """Time each round, with all models open in this process; raise as `measure` does."""

    def measured(options: Any) -> list[Round]:
        def cycle(model: TimedModel) -> Iterator[PreparedRun]:
            session = open_timed_session(model, device)
            return itertools.cycle([prepare(session, one, device, model.path, options) for one in samples])

        return interleave([cycle(model) for model in models], seconds)

    return sessions.run_interruptible(measured)  # once for all runs: its overhead must not be timed


def interleave(
    models: Sequence[Iterator[PreparedRun]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[Round]:
    """Call the next run of each model in turn, round by round, after a warm-up; return the seconds of each.

    No round begins after `seconds`, nor one of the warm-up after a quarter of that, but for the FEWEST. Every
    second round is in reverse (A B B A), as what runs second may find caches warm.
    """

    def timed(runs: Iterator[PreparedRun]) -> float:
        run, start = next(runs), clock()
        run()
        return clock() - start

    def repeat(most: int, fewest: int, limit: float) -> list[Round]:
        end, rounds = clock() + limit, list[Round]()
        while len(rounds) < most and (len(rounds) < fewest or clock() < end):
            way = 1 if len(rounds) % 2 == 0 else -1
            rounds.append(tuple([timed(runs) for runs in models[::way]][::way]))
        return rounds

    repeat(WARMUP, 1, seconds / 4)
    return repeat(MOST, FEWEST, seconds)


def speedup(first: Round, other: Round) -> Speedup:
    """Return the speedup of `other` over `first`, from the ratios of each round.

    The interval is a bootstrap's (Efron 1979) with a fixed seed.
    """
    ratios = np.asarray(first) / np.asarray(other)
    resamples = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = (float(p) for p in np.percentile(np.median(resamples, axis=1), (5, 95)))
    return Speedup(float(np.median(ratios)), low, high)


_RESAMPLES = 1000
