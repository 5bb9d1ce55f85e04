"""Runs of a model with switches: the error of the outputs with any sites rounded."""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.process import executors
from amp_rewrite.running import comparison, emulation, metrics, sessions
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.metrics import Moments
from amp_rewrite.running.sessions import Device, Feeds, Runnable
from amp_rewrite.tuning.switched_model import SwitchedModel


class Target:
    """The outputs of float32 for some samples, and how far others may be from them.

    The error of a float output is that of a verdict: the RMS of the difference over the spread in all samples
    (metrics.spread), at least metrics.SMALLEST; of others, it is the share of values that differ. Sequences
    and maps are as many outputs as they have arrays.
    """

    def __init__(self, wanted: Sequence[Mapping[str, Any]], bound: float) -> None:
        self._wanted, self._bound = [dict(comparison.arrays(outputs)) for outputs in wanted], bound
        moments: defaultdict[str, list[Moments]] = defaultdict(list)
        for name, value in (found for outputs in self._wanted for found in outputs.items()):
            if metrics.is_float(value):
                moments[name].append(metrics.moments(value))
        self._spread = {name: metrics.spread(known) for name, known in moments.items()}

    def squared(self, sample: int, outputs: Mapping[str, Any]) -> float:
        """The squared error of the worst output of a sample, over the square of the bound."""
        wanted, got = self._wanted[sample], dict(comparison.arrays(outputs))
        found = [self._error(name, value, got[name]) for name, value in wanted.items() if name in got]
        return (max(found, default=0.0) / self._bound) ** 2

    def _error(self, name: str, wanted: NDArray[Any], got: NDArray[Any]) -> float:
        if wanted.shape != got.shape:
            return math.inf
        if name not in self._spread:
            return float(np.mean(wanted != got)) if wanted.size else 0.0
        finite = np.isfinite(wanted)
        if not np.isfinite(got[finite]).all():
            return math.inf
        spread = self._spread[name]
        return spread.error(metrics.differences(wanted, got, (spread.axis,)), metrics.SMALLEST)[0]


class SwitchedSession:
    """What measures sites, and how often it did: `runs`, of all samples each.

    `measure` gives the squared error of each sample with these sites rounded, over the square of the target.
    """

    def __init__(self, measure: Callable[[tuple[int, ...]], Iterable[float]]) -> None:
        self._measure = measure
        self.runs = 0
        self._known: dict[tuple[int, ...], float] = {}

    def squared(self, sites: Iterable[int]) -> float:
        """The squared error with these sites on, in the worst sample, over the square of the target."""
        known = tuple(sorted(sites))
        if known not in self._known:
            self.runs += 1
            self._known[known] = max(self._measure(known), default=0.0)
        return self._known[known]


@dataclass(frozen=True, slots=True)
class _Measuring:
    """What a session runs: the name and length of its switches, the samples, what to compare with, and
    libraries of custom operators.
    """

    switches: str
    count: int
    samples: Sequence[Feeds]
    target: Target
    libraries: Libraries

    def squared(self, session: Any, at: int, sites: Sequence[int]) -> float:
        """The squared error of a sample."""
        switches = np.zeros(self.count, bool)
        switches[list(sites)] = True
        outputs = sessions.run_session(session, {**self.samples[at], self.switches: switches})
        return self.target.squared(at, outputs)


@contextlib.contextmanager
def opened(
    original: Runnable,
    model: SwitchedModel,
    samples: Sequence[Feeds],
    bound: float,
    executor: Executor | None = None,
    libraries: Libraries = (),
) -> Generator[SwitchedSession]:
    """A session on the CPU, or one for each worker of an executor, which run a sample each; closed with the
    context. The outputs of the original are computed here.

    Raises ModelError and RunError if the original does not run.
    """
    with emulation.reference(original, Device.CPU, libraries) as found:
        places = ((f"samples[{at}]", sample) for at, sample in enumerate(samples))
        wanted = [sessions.run_session(found.session, sample, where=where) for where, sample in places]
    measuring = _Measuring(model.switches, model.count, samples, Target(wanted, bound), libraries)
    with emulation.runnable(model.loaded) as made:
        if executor is None:
            yield SwitchedSession(_here(sessions.open_session(made, Device.CPU, libraries), measuring))
        else:
            with _shared(made, measuring) as folder:
                yield SwitchedSession(_by_workers(executor, folder, len(samples)))


def _here(session: Any, measuring: _Measuring) -> Callable[[tuple[int, ...]], Iterable[float]]:
    return lambda sites: (measuring.squared(session, at, sites) for at in range(len(measuring.samples)))


def _by_workers(
    executor: Executor, folder: Path, samples: int
) -> Callable[[tuple[int, ...]], Iterable[float]]:
    return lambda sites: executors.results(
        executor, _measured, ((folder, at, sites) for at in range(samples))
    )


@contextlib.contextmanager
def _shared(model: Runnable, measuring: _Measuring) -> Generator[Path]:
    """A folder with all that a worker needs."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if isinstance(model, onnx.ModelProto):
            onnx.save(model, folder / _MODEL)
            model = folder / _MODEL
        (folder / _REST).write_bytes(pickle.dumps((Path(model).absolute(), measuring)))
        yield folder


_MODEL, _REST = "model.onnx", "measuring.pickle"


def _measured(folder: Path, at: int, sites: Sequence[int]) -> float:
    """In a worker: the squared error of a sample."""
    session, measuring = _loaded(folder)
    return measuring.squared(session, at, sites)


@functools.lru_cache(maxsize=1)
def _loaded(folder: Path) -> tuple[Any, _Measuring]:
    model, measuring = pickle.loads((folder / _REST).read_bytes())
    return sessions.open_session(model, Device.CPU, measuring.libraries), measuring
