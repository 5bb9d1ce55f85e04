"""The stage in progress on standard error: its name, a bar, the share of counted steps, the time."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display

STAGES = {
    **dict.fromkeys(("inputs", "load", "widen"), "reading the model"),
    **dict.fromkeys(("insert", "prepare"), "preparing the model"),
    **dict.fromkeys(("analyse", "bound", "rescale"), "analysing values"),
    **dict.fromkeys(("classify", "colour", "predict", "plan", "freeze"), "deciding precisions"),
    **dict.fromkeys(("edit", "annotate"), "changing the model"),
    **dict.fromkeys(("prove", "check"), "checking the result"),
    **dict.fromkeys(("observe", "calibrate"), "running the original for its values"),
    "write": "writing the model",
    "verify": "comparing the two models",
    "blame": "searching for the node to look at",
    "try": "trying other flags",
    "tune": "searching for a better plan",
    "restore": "restoring float32",
    "measure": "measuring latencies",
    "compile": "compiling the result",
}
"""The stages of a run, in words."""


def in_words(stage: str) -> str:
    """Return a stage, with the details behind a colon, in words."""
    name, colon, details = stage.partition(":")
    return f"{STAGES.get(name, name)}{colon}{details}"


class ShownProgress:
    """A progress callback that shows the current stage and its completed steps."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._task = display.add_task(in_words("load"), total=None)

    def __call__(self, stage: str) -> None:
        """Show the start of a stage."""
        self._display.update(self._task, description=in_words(stage), completed=0)
        for task in self._display.tasks:
            task.total = None  # `update` ignores None

    def count(self, completed: int, total: int) -> None:
        """Show the number of completed steps out of `total`."""
        self._display.update(self._task, completed=completed, total=total)


@contextlib.contextmanager
def shown_progress(*, quiet: bool = False) -> Generator[ShownProgress | None]:
    """Yield a callback that shows the stage; None when quiet, or when standard error is not a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Display(*columns, console=console, transient=True) as display:
        yield ShownProgress(display)
