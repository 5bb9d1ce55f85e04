"""Timing and reporting of the stages of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

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


class Stopwatch:
    """A timer of stages that reports them to a progress callback; nested stages are timed separately."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._taken: dict[str, float] = {}
        self._within = 0.0

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Time the context as a stage; the times of a stage that occurs twice add up."""
        if self._progress is not None:
            self._progress(name)
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
