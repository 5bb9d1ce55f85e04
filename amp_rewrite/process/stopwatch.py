"""Names the stage in progress, and times each."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

Progress = Callable[[str], None]
"""Is called with the name of each stage as it begins."""


Count = Callable[[int, int], None]
"""Is called with the steps of a stage that are done, and all of them."""


@runtime_checkable
class CountingProgress(Protocol):
    """A progress callback that shows the steps of a stage, too."""

    def __call__(self, stage: str) -> None:
        """A stage begins."""

    def count(self, done: int, total: int) -> None:
        """So many steps of it are done."""


def count_of(progress: Progress | None) -> Count | None:
    """What counts the steps of a stage; None where the callback shows none."""
    return progress.count if isinstance(progress, CountingProgress) else None


class Stopwatch:
    """Times stages, and passes their names to a progress callback. A stage within another counts alone."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._taken: dict[str, float] = {}
        self._within = 0.0

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Times its body as a stage; the times of a stage that occurs twice add up."""
        if self._progress is not None:
            self._progress(name)
        self._taken.setdefault(name, 0.0)
        before, self._within, start = self._within, 0.0, time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            self._taken[name] += taken - self._within
            self._within = before + taken

    def add(self, stages: Iterable[tuple[str, float]]) -> None:
        """Adds stages that were timed elsewhere."""
        for name, taken in stages:
            self._taken[name] = self._taken.get(name, 0.0) + taken

    @property
    def seconds(self) -> tuple[tuple[str, float], ...]:
        """(stage, wall seconds) in the order in which they began."""
        return tuple(self._taken.items())
