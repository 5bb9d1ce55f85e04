"""Timing and reporting of the stages of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")

Progress = Callable[[str], None]
"""A callback with the name of each stage as it begins."""


Count = Callable[[int, int], None]
"""A callback with the number of completed steps of a stage, and the total."""


@runtime_checkable
class CountingProgress(Protocol):
    """A progress callback that also shows the steps of a stage."""

    def __call__(self, stage: str) -> None:
        """Show that a stage begins."""

    def count(self, completed: int, total: int) -> None:
        """Show the number of completed steps."""


def count_of(progress: Progress | None) -> Count | None:
    """Return the callback for the steps of a stage; None if `progress` does not show them."""
    return progress.count if isinstance(progress, CountingProgress) else None


def tell(progress: Progress | None, stage: str) -> None:
    """Announce a stage to the progress callback, if there is one."""
    if progress is not None:
        progress(stage)


def counted(progress: Progress | None, samples: Iterable[T], total: int) -> Iterator[T]:
    """Yield the samples of a stage and report how many are done, if the callback can show it."""
    count = counting(progress, total)
    for position, sample in enumerate(samples):
        count(position)
        yield sample


def counting(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Return a function that reports completed steps out of `total`, if the callback can show several."""
    count = count_of(progress) if total > 1 else None
    return lambda completed: None if count is None else count(completed, total)


class Stopwatch:
    """A timer of stages that reports them to a progress callback; nested stages are timed separately."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress
        self._taken: dict[str, float] = {}
        self._within = 0.0

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Time the context as a stage; the times of a stage that occurs twice add up."""
        if self.progress is not None:
            self.progress(name)
        self._taken.setdefault(name, 0.0)
        before, self._within, start = self._within, 0.0, time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self._taken[name] += elapsed - self._within
            self._within = before + elapsed

    def add(self, stages: Iterable[tuple[str, float]]) -> None:
        """Add stages that were timed elsewhere."""
        for name, elapsed in stages:
            self._taken[name] = self._taken.get(name, 0.0) + elapsed

    @property
    def seconds(self) -> tuple[tuple[str, float], ...]:
        """The (stage, wall seconds) pairs, in the order of their start."""
        return tuple(self._taken.items())
