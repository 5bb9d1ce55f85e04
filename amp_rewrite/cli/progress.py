"""The stage in progress on standard error: a spinner with its name, a bar for counted steps, the time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Display
from rich.text import Text

from amp_rewrite.process.stopwatch import Progress, count_of

T = TypeVar("T")


class _Bar(BarColumn):
    """A bar, for stages whose steps are counted."""

    def render(self, task: Task) -> RenderableType:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The bar; nothing where the number of steps is not known."""
        return Text("") if task.total is None else super().render(task)


class _Count(MofNCompleteColumn):
    """The steps that are done, and all of them."""

    def render(self, task: Task) -> Text:
        """The counts; nothing where they are not known."""
        return Text("") if task.total is None else super().render(task)


class ShownProgress:
    """Shows the stage that it is called with, and within it the steps that are done."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._task = display.add_task("load", total=None)

    def __call__(self, stage: str) -> None:
        """Shows that a stage begins."""
        self._display.update(self._task, description=stage, completed=0)
        for task in self._display.tasks:
            task.total = None  # which `update` would leave as it is

    def count(self, done: int, total: int) -> None:
        """Shows that `done` of `total` steps of the stage are done."""
        self._display.update(self._task, completed=done, total=total)


@contextlib.contextmanager
def shown_progress(*, quiet: bool = False) -> Generator[ShownProgress | None]:
    """A progress callback with a spinner; None when quiet, or when standard error is not a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        _Bar(),
        _Count(),
        TimeElapsedColumn(),
    )
    with Display(*columns, console=console, transient=True) as display:
        yield ShownProgress(display)


def tell(progress: Progress | None, stage: str) -> None:
    """Passes a stage that begins to a progress callback, if there is one."""
    if progress is not None:
        progress(stage)


def counted(progress: Progress | None, samples: Iterable[T], total: int) -> Iterator[T]:
    """The samples of a stage, which shows how many of them are done, where that can be shown."""
    count = counting(progress, total)
    for done, sample in enumerate(samples):
        count(done)
        yield sample


def counting(progress: Progress | None, total: int) -> Callable[[int], None]:
    """A function that shows how many of `total` steps of the stage are done, where that can be shown, and
    there are several.
    """
    show = count_of(progress) if total > 1 else None

    def count(done: int) -> None:
        if show is not None:
            show(done, total)

    return count
